"""`hetero-hvd simulate`: described and recorded clusters."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.simulation.simulation import row_of
from hetero_hvd.errors import JobError
from hetero_hvd.measure.recording import read_recording
from hetero_hvd.messages import StepsTimed, WorkerId, WorkersJoined


def test_every_policy_is_compared_on_the_same_cluster(capsys):
    """The oracle is the best, ours the best of those that learn, even shares the worst."""
    assert main(["simulate", "--steps", "200", "--seeds", "2", "--json"]) == 0
    found = {row["policy"]: row["share_ratio"] for row in json.loads(capsys.readouterr().out)}
    assert max(found, key=found.get) == "oracle"
    assert min(found, key=found.get) == "uniform"
    assert found["ours"] > max(found["lbb"], found["omnilearn"])


def test_changes_losses_and_returns_can_be_described(capsys):
    """STEP:WORKER:RATIO; inf is a loss, 1 the return."""
    words = ["--change", "50:0:2", "--change", "80:1:inf", "--change", "120:1:1"]
    assert main(["simulate", "--steps", "160", "--seeds", "1", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--policies", "ours,best"], "best"),
        (["--speeds", "1,-2"], "--speeds"),
        (["--speeds", "1,2", "--overheads", "0"], "--overheads"),
        (["--change", "5:9:2"], "--change"),
        (["--global-batch-size", "1"], "--global-batch-size"),
        (["--steps", "0"], "--steps"),
        (["--recording", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_wrong_input_is_one_line(capsys, words, named):
    """It names the flag; exit code 2."""
    assert main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


@pytest.fixture(name="recording")
def recorded_run(tmp_path):
    """A recorded run of two workers at 1000 and 250 samples/s with 10 ms overhead."""
    workers = (WorkerId("a", 0), WorkerId("b", 0))
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=workers,
        applied_steps=0,
        global_batch_size=100,
        capacities=(-1, -1),
        prefetch_steps=0,
    )
    random = np.random.default_rng(0)
    events = [joined]
    for step in range(60):
        sizes = (50, 50) if step < 10 else (80 - step % 5, 20 + step % 5)
        busy = [0.01 + n / speed for n, speed in zip(sizes, (1000, 250), strict=True)]
        noise = np.exp(random.normal(0, 0.02, 2))
        rows = tuple(row_of(n, t * float(f)) for n, t, f in zip(sizes, busy, noise, strict=True))
        events.append(
            StepsTimed(
                rendezvous_id=1,
                step=step,
                epoch=0,
                loss=float("nan"),
                timings=rows,
                exchange_seconds=0.0,
            )
        )
    path = tmp_path / "timings.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, events)) + b"\n")
    return path


def test_a_recorded_run_gives_its_workers_back(recording):
    """The curves are those that the timings came from, to 5 %."""
    scenario = read_recording(recording)
    for curve, speed in zip(scenario.curves, (1000, 250), strict=True):
        assert curve.step_seconds(50) == pytest.approx(0.01 + 50 / speed, rel=0.05)
    assert scenario.global_batch_size == 100
    assert len(scenario.recorded) == 60


def test_a_torn_tail_is_no_error_but_a_torn_middle_is(recording):
    """A killed run leaves half a line at the end."""
    whole = recording.read_bytes()
    recording.write_bytes(whole[:-30])
    assert len(read_recording(recording).recorded) == 59
    recording.write_bytes(whole.replace(b'"epoch":0', b'"epoch":"x"', 1))
    with pytest.raises(JobError, match=r"timings\.jsonl:2"):
        read_recording(recording)
