"""What `hetero-hvd trial` refuses before anything is tried."""

from __future__ import annotations

import pytest

from hetero_hvd.cli import main

OVER = "argument --over: {} (see hetero-hvd trial --help)"
ALL = "devices, batch, accumulation, compression, staleness"
STEPS = (
    "argument --steps: '0': must be a whole number from 1 to 1000000 (see hetero-hvd trial --help)"
)
NO_PLACE = (
    "--over compression: needs jobs of its own, which --slurm gives no place to; leave one of them "
    "out"
)
NO_COMMAND = "no command: hetero-hvd trial [options] -- train.py [arguments]"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--over", "devices,stalenes", "--", "tran.py"],
            OVER.format("'stalenes' cannot be tried; did you mean staleness?"),
        ),
        (["--over", "gpus"], OVER.format(f"'gpus' cannot be tried; there are {ALL}")),
        (["--over", ""], OVER.format(f"'' cannot be tried; there are {ALL}")),
        (
            ["--steps", "0", "--", "tran.py"],
            STEPS,
        ),
        ([], NO_COMMAND),
        (["--over", "compression"], NO_COMMAND),
        (
            ["--over", "compression", "--slurm", "--", "tran.py"],
            NO_PLACE,
        ),
        (
            ["--over", "batch", "--", "train.py"],
            "train.py: no such file in FOLDER, where a runs it; did you mean tran.py?",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, line):
    """Nothing on standard output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tran.py").touch()
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: a, slots: 1, devices: []}]")
    assert main(["trial", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.replace(str(tmp_path), "FOLDER") == f"hetero-hvd: {line}\n"
