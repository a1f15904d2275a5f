"""Any two recorded runs can be compared."""

from __future__ import annotations

import json
import re

import pytest

from hetero_hvd.cli import main
from hetero_hvd.messages import Evaluated, RunStarted
from hetero_hvd.run.records.timings import TimingLog

from .test_records import JOINED, timed, timing, write


def record(folder, *, rule, data, nodes=("alpha",), name="", **tags):
    """A run of three exchanges."""
    folder.mkdir()
    settings = {"rule": rule, "grain": "16"}
    started = RunStarted(
        run_id=folder.name, name=name, command=("x",), nodes=nodes, settings=settings, tags=tags
    )
    rows = timing(8, data=data), timing(4, data=data)
    events = [JOINED, *(timed(step, *rows) for step in (9, 19, 29))]
    log = TimingLog(folder)
    for number, event in enumerate(events):
        log.write(1.0 + number, event)
    log.close()
    write(folder, started, *events, Evaluated(epoch=0, step=30, metrics={"accuracy": 1 - data}))
    return folder


def test_what_differs_is_told(tmp_path, capsys):
    """Settings, speed, loss and shares; what is the same in both is not repeated."""
    one = record(tmp_path / "one", rule="model", data=0.01)
    two = record(tmp_path / "two", rule="lbb", data=0.11, nodes=("alpha", "beta"))
    assert main(["compare", str(one), str(two)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "rule: model and lbb" in lines
    assert "nodes: alpha and alpha + beta" in lines
    assert not any(line.startswith("grain") for line in lines)
    assert "samples/s: 120 and 60 (-50.0%)" in lines
    assert "accuracy: 0.99 and 0.89" in lines
    assert "loss at step 29: 1 and 1" in lines
    assert "last share of beta:0: 4 and 4" in lines


def test_any_number_of_runs_is_compared(tmp_path, capsys):
    """What was tried comes first, each line with a value of every run."""
    runs = [record(tmp_path / name, rule="model", data=0.01, lr=name) for name in ("a", "b", "c")]
    assert main(["compare", *map(str, runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "tag.lr: a, b and c"
    assert "samples/s: 120, 120 (+0.0%) and 120 (+0.0%)" in lines


CHOSEN = {
    "one --name c": ["one", "c"],
    "--tag lr": ["a", "b", "c"],
    "a --tag lr --sort name": ["a", "b", "c"],
    "--where accuracy>0": ["a", "b", "c", "one"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four runs in runs/."""
    top = tmp_path_factory.mktemp("top")
    (top / "runs").mkdir()
    for name in ("a", "b", "c"):
        record(top / "runs" / name, rule="model", data=0.01, lr=name)
    record(top / "runs" / "first", name="one", rule="model", data=0.01)
    return top


@pytest.mark.parametrize("line", CHOSEN)
def test_runs_are_compared_by_name_tag_or_condition(folders, monkeypatch, capsys, line):
    """Those that are named come first, each once, called by their names; files have them all."""
    monkeypatch.chdir(folders)
    assert main(["compare", *line.split()]) == 0
    named = re.findall(r"(\w+) \(no end recorded\)", capsys.readouterr().out.splitlines()[0])
    assert named == CHOSEN[line]
    assert main(["compare", *line.split(), "--html", "c.html"]) == 0
    data = re.search(r'id="data">(.*?)</script>', (folders / "c.html").read_text(), re.DOTALL)
    told = json.loads(data[1])
    assert told["labels"] == named
    assert [one["label"] for one in told["plots"]["plots"][0]["lines"]] == named


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_several_runs_are_drawn_into_a_file(folders, monkeypatch, suffix):
    """The name of each is in it, where it is text."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folders)
    path = folders / f"plots{suffix}"
    assert main(["compare", "--tag", "lr", "--plot", str(path)]) == 0
    assert path.stat().st_size > 5000


NOT_TWO = {
    "": "RUN is missing; name two runs or more",
    "one": "name at least one other run",
    "--name nobody": "no run in runs/ is chosen by these",
}
NOT_HEEDED = {
    "runs/a runs/b --sort name": "--sort: is the order of runs that --name",
    "--sort name": "--sort: is the order of runs that --name",
    "--tag lr --json --html x.html": "--json and --html: cannot be given together",
    "--tag lr --json --plot x.png": "--json and --plot: cannot be given together",
}


@pytest.mark.parametrize("line", NOT_TWO | NOT_HEEDED)
def test_what_cannot_be_compared_so_is_one_line(folders, monkeypatch, capsys, line):
    """Exit code 2, with what to do: fewer than two, and an option that would not be heeded."""
    monkeypatch.chdir(folders)
    assert main(["compare", *line.split()]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert (NOT_TWO | NOT_HEEDED)[line] in said


def test_one_run_alone_is_one_line(tmp_path, capsys):
    """Exit code 2."""
    assert main(["compare", str(record(tmp_path / "a", rule="model", data=0.01))]) == 2
    assert "at least one other run" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_one_line(tmp_path, capsys):
    """It says how a run is named: what `--name` has called it is none."""
    assert main(["compare", str(record(tmp_path / "a", rule="model", data=0.01)), "r50"]) == 2
    said = capsys.readouterr().err
    assert "r50: No such file or directory; name the output folder" in said
    assert "fingerprints" not in said


def test_a_folder_without_a_run_is_one_line(tmp_path, capsys):
    """Exit code 2."""
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


WITHOUT = {
    "good nothing": ["nothing"],
    "nothing good": ["nothing"],
    "good torn": ["torn"],
    "nothing bits": ["nothing"],
    "good good nothing": ["nothing"],
    "nothing good empty": ["nothing", "empty"],
    "bits bits good": ["bits"],
    "good bits": ["good"],
    "bits good": ["good"],
}
"""Runs of the fixture `unlike`, and of which of them something is said."""


@pytest.fixture
def unlike(tmp_path, monkeypatch):
    """A run; folders of which one holds fingerprints alone; a damaged record."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "good", rule="model", data=0.01)
    for name in ("nothing", "empty", "bits", "torn"):
        (tmp_path / name).mkdir()
    (tmp_path / "bits" / "fingerprints.jsonl").write_text("")
    (tmp_path / "torn" / "run.sqlite").write_bytes(b"nothing of the kind")


@pytest.mark.usefixtures("unlike")
@pytest.mark.parametrize(
    ("command", "line", "blamed"),
    [
        *(("compare", line, blamed) for line, blamed in WITHOUT.items()),
        *(("advise", line, ["torn"]) for line in ("good torn", "torn good")),
        *(("advise", line, ["nothing"]) for line in ("good nothing", "nothing good")),
    ],
)
def test_of_several_runs_those_are_named_that_lack_something(command, line, blamed, capsys):
    """Wherever they stand, a line for each; no other one is blamed."""
    assert main([command, *line.split()]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [re.match(r"hetero-hvd: (\w+)", each)[1] for each in said] == blamed
