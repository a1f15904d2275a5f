"""Trials inside running jobs: real workers leave and come back, and no sample is lost by it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import statistics
import subprocess
import sys
from itertools import combinations, pairwise

import pytest

from tests.kit.checkout import variables
from tests.kit.fault_job import FaultJob
from tests.leftovers import wait_until

from .conftest import BATCH, SAMPLES, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

STEP_SECONDS = 0.15
"""Of the fastest node for a whole batch."""

LATE_SECONDS = 0.2
"""So much later than the others gamma comes to each reduction."""

SPEEDS = {"alpha": 1.0, "beta": 0.5, "gamma": 0.1}
DONE = "done"

MEASURED_STEPS = 60
"""By so many a placement's speed is known; as many before them let its shares settle."""


def node(name):
    """Emulated, with a price."""
    return {
        "name": name,
        "slots": 1,
        "devices": [],
        "price_per_hour": 1.0,
        "emulate": {"seconds_per_sample": STEP_SECONDS / BATCH / SPEEDS[name]},
    }


SLOW = {"step_seconds": 0.0, "update_seconds": {"gamma:0": LATE_SECONDS}, "patient_until": DONE}


def found_of(folder):
    """What was found, as it is recorded."""
    with sqlite3.connect(folder / "out" / "run.sqlite") as catalogue:
        query = "SELECT body FROM events WHERE kind = 'TrialReported'"
        ((body,),) = catalogue.execute(query).fetchall()
    catalogue.close()
    return json.loads(body)


def hetero_hvd(*words):
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", *words],
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def speed(rows):
    """Samples per second, by the median of the steps that a trace ends with.

    Args:
        rows: Of a trace; the first of them have shares that are not yet settled.
    """
    ends = [at for at, *_ in rows[-MEASURED_STEPS - 1 :]]
    assert len(ends) == MEASURED_STEPS + 1, f"only {len(ends)} steps"
    return BATCH / statistics.median(after - before for before, after in pairwise(ends))


def steps(job):
    """The rows of a running job's trace, in order; the worker may have been left out by a trial."""
    texts = [file.read_text() for file in job.folder.glob("trace-alpha-0.*.jsonl")]
    return sorted(json.loads(line) for text in texts for line in text.splitlines()[:-1])


def steps_together(job, num_workers):
    """The rows whose steps so many workers have taken together, in order."""
    return [row for row in steps(job) if row[3] == num_workers]


def workers_now(job):
    """How many have taken the last step together."""
    return steps(job)[-1][3]


def test_a_job_that_ends_before_its_trial_says_what_was_measured(start):
    """And has used each sample once in each epoch, though a node had been left out."""
    epochs = 10
    job = start(
        nodes=[node("alpha"), node("gamma")],
        subcommand="trial",
        arguments=("--steps", "4", "--output", "out"),
        settings={"reproducible": True},
        epochs=epochs,
        patient_from=10**6,
        **SLOW,
    )
    assert job.wait() == 0, job.console
    assert "gamma:0 is left out by a trial and leaves" in job.console
    assert "trial: the job has ended before the trial was over" in job.console
    found = found_of(job.folder)
    assert not found["is_complete"]
    assert found["placements"][0]["samples_per_second"]
    told = [device.partition(", emulated: ")[2] for device in found["devices"]]
    seconds = (STEP_SECONDS / BATCH / SPEEDS[name] for name in ("alpha", "gamma"))
    assert sorted(told) == sorted(f"seconds_per_sample {each:g}" for each in seconds)
    trained = {result["worker"] for result in job.results()}
    assert_exact(job, epochs=epochs, workers=sorted(trained))


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_the_advised_placement_is_nearly_the_best_of_all_seven(start, tmp_path):
    """It is measured in the job, and followed by the command that is printed."""
    job = start(
        nodes=[node(name) for name in SPEEDS],
        subcommand="trial",
        arguments=("--output", "out"),
        epochs=10_000,
        patient_from=10**6,
        **SLOW,
    )
    job.wait_for("trial: best of", 500)
    wait_until(lambda: workers_now(job) == len(SPEEDS), 60, "who was left out is back")
    said = json.loads(hetero_hvd("advise", str(job.folder / "out"), "--for", "speed", "--json"))
    advice = said["advice"][0]
    assert advice["kind"] == "placement"
    assert "measured by the trial of out" in advice["evidence"][-1]
    for command in advice["command"].split(" && "):
        program, *words = shlex.split(command)
        assert program == "hetero-hvd"
        hetero_hvd(*words)
    staying = {n for n in SPEEDS if f" {n} " not in advice["command"]}
    job.wait_for(f"{len(staying)} workers train together", 60)
    before = len(steps_together(job, len(staying)))
    settled = before + 2 * MEASURED_STEPS
    wait_until(lambda: len(steps_together(job, len(staying))) >= settled, 120, "settled shares")
    reached = speed(steps_together(job, len(staying)))
    job.close()
    every = {}
    for size in (1, 2, 3):
        for names in combinations(SPEEDS, size):
            folder = tmp_path / "-".join(names)
            folder.mkdir()
            alone = FaultJob(
                folder,
                [node(name) for name in names],
                epochs=2 * MEASURED_STEPS * BATCH // SAMPLES,
                num_samples=SAMPLES,
                batch_size=BATCH,
                patient_from=10**6,
                **SLOW,
            )
            assert alone.wait(400) == 0, alone.console  # gamma alone needs 1.7 s for each of them
            every[names] = speed(alone.trace(but=[f"{other}:0" for other in names[1:]]))
    assert reached >= 0.97 * max(every.values()), (reached, every)


@pytest.mark.matrix
def test_bits_of_a_job_that_was_tried_are_those_of_one_left_alone(tmp_path):
    """In its placements, and before that in a setting that changes the numbers."""
    epochs = 30
    whole = {"epochs": epochs, "num_samples": SAMPLES, "batch_size": BATCH}
    alone = tmp_path / "alone"
    alone.mkdir()
    reference = FaultJob(
        alone, ["alpha"], settings={"reproducible": True}, step_seconds=0.0, **whole
    )
    assert reference.wait(200) == 0, reference.console
    tried = tmp_path / "tried"
    tried.mkdir()
    job = FaultJob(
        tried,
        [node("alpha"), node("gamma")],
        subcommand="trial",
        arguments=("--over", "devices,compression", "--steps", "4", "--output", "out"),
        settings={"reproducible": True},
        patient_from=10**6,
        **whole,
        **SLOW,
    )
    try:
        assert job.wait(500) == 0, job.console
    finally:
        job.close()
    assert "gamma:0 is left out by a trial and leaves" in job.console
    assert "trial: compression fp16" in job.console
    states = [sorted({r["state"] for r in each.results()}) for each in (reference, job)]
    assert states[0] == states[1]
    assert len(states[0]) == 1


@pytest.mark.matrix
def test_ctrl_c_ends_a_trial_with_what_was_measured_until_then(start):
    """While a placement is tried, for which a node has left: exit code 130, and no traceback."""
    job = start(
        nodes=[node("alpha"), node("gamma")],
        subcommand="trial",
        arguments=("--steps", "4", "--output", "out"),
        epochs=10_000,
        patient_from=10**6,
        **SLOW,
    )
    job.wait_for("gamma:0 is left out by a trial and leaves", 200)
    pids = job.pids()
    job.process.send_signal(signal.SIGINT)
    assert job.wait(100) == 130, job.console
    lines = job.console.splitlines()
    assert lines.count("trial: the job has ended before the trial was over") == 1
    (head,) = (place for place, line in enumerate(lines) if line.startswith("placement "))
    assert any(line.startswith("alpha gamma ") for line in lines[head:])
    assert "Traceback" not in job.console
    assert found_of(job.folder)["placements"][0]["samples_per_second"]
    assert "alpha" in (job.folder / "placements.json").read_text()
    assert pids
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


NO_TRAINER = {
    "that only prints": (
        'print("worked")',
        2,
        (
            "trial: the job has ended before a placement was measured: a trial needs a script that "
            "trains by hetero_hvd.Trainer, and some hundred steps"
        ),
    ),
    "that knows Horovod only": (
        (
            "import horovod.torch as hvd, torch\n"
            "hvd.init()\n"
            "for step in range(20):\n"
            "    hvd.allreduce(torch.ones(4), name='sum')\n"
        ),
        0,
        (
            "trial: nothing to compare: planned shares are, and here the script divides its data "
            "itself"
        ),
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", NO_TRAINER)
def test_a_script_without_our_trainer_is_told_so_in_a_line(tmp_path, name):
    """It runs as ever, and ends with the code that it would have without a trial."""
    text, code, line = NO_TRAINER[name]
    (tmp_path / "script.py").write_text(text)
    nodes = [{"name": each, "slots": 1, "devices": []} for each in ("alpha", "beta")]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", "trial", "--output", "out", "--", "script.py"],
        cwd=tmp_path,
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert said.splitlines().count(line) == 1, said
    assert "Traceback" not in said
    assert not (tmp_path / "placements.json").exists()
