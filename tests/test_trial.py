"""What `hetero-hvd trial` refuses before anything is tried, and what interrupts it then."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train import run

OVER = "argument --over: {} (see hetero-hvd trial --help)"
ALL = "devices, batch, accumulation, compression, staleness"
STEPS = (
    "argument --steps: '0': must be a whole number from 1 to 1000000 (see hetero-hvd trial --help)"
)
NO_PLACE = (
    "--over compression: needs jobs of its own, which --slurm gives no place to; leave one of them "
    "out"
)
NO_COMMAND = "no command: hetero-hvd trial [options] train.py [arguments]"


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
        (["--steps", "9" * 5000], STEPS.replace("'0'", f"'{'9' * 5000}'")),
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


@pytest.mark.parametrize("is_in_the_loop", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_short_job_is_ending_by_itself_ends_all(
    monkeypatch, number, is_in_the_loop
):
    """It has measured already, but the next one is not started."""
    started = []

    async def measured(termination):
        with termination.told_to(lambda _: None):
            if is_in_the_loop:
                os.kill(os.getpid(), number)

    def job(_arguments, termination, measurement):
        started.append(measurement)
        measurement.samples_per_second = 100.0
        asyncio.run(measured(termination))
        if not is_in_the_loop:
            os.kill(os.getpid(), number)
        return 0

    monkeypatch.setattr(run, "_act", job)
    assert main(["trial", "--over", "compression", "--", "train.py"]) == 128 + number
    assert len(started) == 1
