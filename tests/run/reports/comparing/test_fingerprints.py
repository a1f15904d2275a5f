"""Two runs are compared by what they kept."""

import json

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import JobError
from hetero_hvd.run.reports.comparing.fingerprints import compare


def write(folder, digests, **more):
    """A run with a fingerprint after each third step."""
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "epoch": number // 2,
            "step": 3 * number,
            "is_epoch": number % 2 == 1,
            "fingerprint": digest,
            "loss": number / 4,
            "parts": {"model": digest, "position": "same"},
            "numerics": "torch 2; threads 1",
        }
        | more
        for number, digest in enumerate(digests)
    ]
    (folder / "fingerprints.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_equal_runs(tmp_path):
    """Steps that only one of them recorded do not count."""
    found = compare(write(tmp_path / "a", "abcd"), write(tmp_path / "b", "abc"))
    assert found.are_equal
    assert found.lines == ("equal: 3 fingerprints, the last after step 6 (a step of epoch 1)",)


def test_the_first_difference_is_named(tmp_path):
    """With what differs, the losses, and what else was different."""
    write(tmp_path / "a", "abcd")
    write(tmp_path / "b", "abxy", numerics="torch 2; threads 8")
    found = compare(tmp_path / "a", tmp_path / "b" / "fingerprints.jsonl")
    assert not found.are_equal
    assert found.lines == (
        "different after step 6 (a step of epoch 1): model",
        "  loss 0.5 and 0.5",
        "  equal until step 3",
        "  to find the step: run both again with --fingerprint-steps 1",
        "  the first ran with threads 1, the second with threads 8",
    )


def test_a_run_that_contradicts_itself_is_refused(tmp_path):
    """A step taken twice must give the same bits."""
    file = write(tmp_path / "a", "ab") / "fingerprints.jsonl"
    again = file.read_text().splitlines()[1].replace('"b"', '"x"')
    file.write_text(file.read_text() + again + "\n" + '{"torn')
    with pytest.raises(JobError, match=r"fingerprints.jsonl:3: differs from an earlier line"):
        compare(tmp_path / "a", tmp_path / "a")


def test_the_command_line(tmp_path, capsys):
    """Exit codes 0, 1 and 2."""
    write(tmp_path / "a", "ab")
    write(tmp_path / "b", "ac")
    names = {name: str(tmp_path / name) for name in "abx"}
    assert main(["compare", names["a"], names["a"]]) == 0
    assert main(["compare", names["a"], names["b"]]) == 1
    assert main(["compare", names["a"], names["x"]]) == 2
    captured = capsys.readouterr()
    assert "different after step 3 (epoch 0): model" in captured.out
    assert "No such file" in captured.err


def test_results_of_evaluations_are_compared(tmp_path):
    """The first one that differs is named, also where all training state is the same."""
    for name, found in (("a", 0.25), ("b", 0.5), ("c", None)):
        result = {"step": 3, "number": 1, "metrics": {"accuracy": found, "same": 1.0}}
        write(tmp_path / name, "ab", evaluations=[result])
    assert compare(tmp_path / "a", tmp_path / "a").are_equal
    line = "evaluation 1 after step 3 differs: accuracy 0.25 and 0.5"
    assert compare(tmp_path / "a", tmp_path / "b").lines == (line,)
    assert compare(tmp_path / "c", tmp_path / "b").lines[0].endswith("accuracy nan and 0.5")
    write(tmp_path / "d", "ax", evaluations=[result | {"metrics": {"accuracy": 0.5}}])
    assert f"  {line}" in compare(tmp_path / "a", tmp_path / "d").lines
