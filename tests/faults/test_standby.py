"""A member without samples that holds up each reduction is set aside, and comes back for another.

Its updates take long, as on a processor beside a large GPU; workers and Horovod are real.
"""

import itertools
import json
import os
import signal
import sqlite3
from statistics import median

import pytest

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

EPOCHS = 100
PATIENT_FROM = 200
DONE = "done"
"""A file: from then on the training hurries to its end."""

LATE_SECONDS = 0.1


def node(name, **emulate):
    """A local node with one CPU slot."""
    return {"name": name, "slots": 1, "devices": [], "emulate": emulate}


FAST = {"seconds_per_sample": 0.0002}
NODES = [node("alpha", **FAST), node("beta", **FAST), node("gamma", **FAST, overhead_seconds=0.3)]


@pytest.fixture
def begin(start):
    """Starts a job of which gamma gets no samples, and is late in each reduction."""

    def begin(nodes, epochs=EPOCHS, **settings):
        return start(
            nodes=nodes,
            epochs=epochs,
            settings={"set_aside_seconds": 0} | settings,
            step_seconds=0.0,
            update_seconds={"gamma:0": LATE_SECONDS},
            patient_from=PATIENT_FROM,
            patient_until=DONE,
        )

    return begin


def reports(job):
    """What was decided, as it is recorded."""
    with sqlite3.connect(job.folder / "out" / "run.sqlite") as catalogue:
        query = "SELECT body FROM events WHERE kind = 'SetAsideReported'"
        rows = catalogue.execute(query).fetchall()
    catalogue.close()
    return [json.loads(body) for (body,) in rows]


def step_seconds(job, num_workers):
    """Median time between the steps of alpha before the training waits, with so many workers."""
    lines = job.trace(but=("beta:0", "gamma:0"))
    pairs = itertools.pairwise(line for line in lines if line[1] < PATIENT_FROM)
    return median(b[0] - a[0] for a, b in pairs if a[3] == b[3] == num_workers)


def test_it_is_set_aside_and_back_when_a_worker_is_lost(begin):
    """The others are faster meanwhile; no sample is lost or taken twice."""
    job = begin(NODES)
    job.wait_for("2 workers by themselves: a step takes", 60)
    job.wait_for("gamma:0 is set aside until a worker is lost")
    job.wait_for("gamma:0 has left")
    os.kill(job.pids()["beta-0"], signal.SIGKILL)
    job.wait_for("beta:0 is gone: gamma:0 comes back")
    job.wait_for("workers train together: alpha:0, gamma:0", 60)
    (job.folder / DONE).touch()
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "gamma:0"))
    found = reports(job)
    assert [event["what"] for event in found] == ["tried", "set aside", "returned"]
    assert all(event["workers"] == [["gamma", 0]] for event in found)
    assert found[1]["with_seconds"] > max(LATE_SECONDS, found[1]["without_seconds"])
    assert step_seconds(job, 2) < step_seconds(job, 3)
    decisions = (job.folder / "out" / "decisions.jsonl").read_text().splitlines()
    actions = [json.loads(line)["action"] for line in decisions]
    assert actions.count("set aside") == actions.count("returned") == 1


@pytest.mark.matrix
def test_it_takes_over_from_one_that_was_alone(begin):
    """Where the user has said that one is enough: its state was in the last checkpoint."""
    nodes, epochs = (NODES[0], NODES[2]), PATIENT_FROM // 4 + 5
    job = begin(nodes, epochs, set_aside="always", checkpoint_seconds=0.2)
    job.wait_for("alpha:0 alone: a step takes", 60)
    job.wait_for("gamma:0 has left")
    job.wait_for_step(PATIENT_FROM)
    os.kill(job.pids()["alpha-0"], signal.SIGKILL)
    job.wait_for("alpha:0 is gone: gamma:0 comes back")
    job.wait_for("the next go on from the last checkpoint")
    job.wait_for("1 workers train together: gamma:0", 60)
    (job.folder / DONE).touch()
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=epochs, workers=("gamma:0",))
    assert [event["what"] for event in reports(job)] == ["tried", "set aside", "returned"]
