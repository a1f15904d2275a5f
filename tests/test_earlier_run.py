"""What an earlier version has written can still be read: a run's records, checkpoints and curves.

`tests/earlier_run` was written by version 0.1.0 before its modules had their present places: twelve
steps of `train.py` on two workers. Whoever changes a format keeps reading this one.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.messages import BatchPlan, Evaluated, StepsTimed, WorkersJoined
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.timings import read_timings
from hetero_hvd.run.reports.facts import facts_of

EARLIER = Path(__file__).with_name("earlier_run")
STEPS = 12


@pytest.fixture(name="folder")
def copied_folder(tmp_path):
    """A copy that may be written to."""
    return Path(shutil.copytree(EARLIER, tmp_path / "runs"))


def test_its_records_are_read(folder):
    """Every event, and what is made of them."""
    record = read_record(folder / "run")
    kinds = {type(event) for _, event in record.events}
    assert {WorkersJoined, BatchPlan, Evaluated} <= kinds
    timings = [event for _, event in read_timings(folder / "run")]
    rows = [row for event in timings if isinstance(event, StepsTimed) for row in event.timings]
    assert rows
    assert all(math.isfinite(row.busy_seconds) for row in rows if row.num_steps)
    facts = facts_of(record)
    assert (facts.state, facts.num_memberships) == ("the training is finished", 1)
    assert facts.samples_per_second > 0
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == STEPS


@pytest.mark.parametrize("words", [["report"], ["report", "--json"], ["export"], ["compare"]])
def test_the_commands_read_it(folder, capsys, monkeypatch, words):
    """As if it had just ended."""
    monkeypatch.chdir(folder)
    runs = ["run", "run"] if words == ["compare"] else ["run"]
    assert main([words[0], *runs, *words[1:]]) == 0
    assert capsys.readouterr().out


@pytest.mark.process
def test_a_job_goes_on_from_its_checkpoint(folder):
    """Two more epochs after the third, on one worker, with what was learnt about it."""
    (folder / "nodes.yaml").write_text("nodes: [{name: alpha, slots: 1, devices: []}]\n")
    command = [sys.executable, "-m", "hetero_hvd", "run", "-f", "nodes.yaml", "--resume", "run"]
    done = subprocess.run(
        [*command, "--", "python", "train.py", "5"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 12" in done.stdout
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["steps"] == STEPS + 8
    assert "alpha" in (folder / "curves.json").read_text()
