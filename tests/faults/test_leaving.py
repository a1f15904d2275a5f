"""Workers that leave on purpose: on SIGTERM, by drain, by nodes.yaml. No rollback, no step lost."""

import stat
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.kit.fault_job import write_nodes

from .conftest import BATCH, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LINGER_SECONDS = 6.0


def drain(job, target):
    """`hetero-hvd drain`, as a user would call it."""
    vector = [sys.executable, "-m", "hetero_hvd", "drain", "--output", "out", target]
    return subprocess.run(vector, cwd=job.folder, capture_output=True, text=True, check=False)


def test_sigterm_and_drain_let_a_worker_go(start):
    """It finishes its step and goes; the others go on, and it is not started again.

    A mistyped name changes nothing and is told.
    """
    fault = {"worker": "delta:0", "step": 10, "kind": "terminate"}
    nodes = ("alpha", "beta", "gamma", "delta")
    job = start(fault, nodes=nodes, epochs=100, settings={"max_restarts": 3})
    job.wait_for("delta:0 is given up after 0 restarts: it was asked to leave by SIGTERM")
    mode = (job.folder / "out" / "control.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    wrong = drain(job, "delta")
    assert wrong.returncode == 2
    assert "there are: alpha:0, beta:0, gamma:0" in wrong.stderr
    right = drain(job, "beta")
    assert right.returncode == 0, right.stderr
    assert right.stdout == "beta:0 leaves after the step under way\n"
    job.wait_for("beta:0 has left")
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=100, workers=("alpha:0", "gamma:0"))
    workers = job.summary()["workers"]
    assert [workers[name]["exit_codes"] for name in ("beta:0", "delta:0")] == [[0], [143]]
    by_others = sum(line[2] for line in job.trace(("delta:0",)) if line[1] == 11)
    assert 0 < by_others < BATCH, "delta:0 has not finished its step"


@pytest.mark.matrix
def test_nobody_waits_for_what_a_leaving_worker_still_has_to_do(start):
    """A script that uploads something at its end, in `finally`, holds up itself only."""
    fault = {"worker": "beta:0", "step": 10, "kind": "terminate", "linger_seconds": LINGER_SECONDS}
    job = start(fault, epochs=200)  # twice as long as it lingers
    job.wait_for("2 workers train together")
    assert "beta:0 was ended" not in job.console
    job.wait_for("beta:0 is given up after 0 restarts: it was asked to leave by SIGTERM")
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=200, workers=("alpha:0", "gamma:0"))
    times = [line[0] for line in job.trace(("beta:0",)) if line[0] > job.fired()[0]]
    longest = max(later - earlier for earlier, later in pairwise(times))
    assert longest < LINGER_SECONDS / 2


def test_a_drain_without_a_job_is_one_line(tmp_path):
    """Nobody listens there."""
    vector = [sys.executable, "-m", "hetero_hvd", "drain", "--output", str(tmp_path), "alpha"]
    done = subprocess.run(vector, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no job takes orders in" in done.stderr


@pytest.mark.matrix
def test_nodes_that_come_together_join_in_one_change(start):
    """Two nodes added at once: the others stand still once, not twice; a broken edit is refused."""
    job = start(epochs=60, num_workers=4, patient_from=30, nodes=("alpha", "beta"))
    job.wait_for_step(10)
    job.nodes_file.write_text("nodes: [{name: alpha, slots: ]\n")
    job.wait_for("the job goes on with the earlier version")
    write_nodes(job.nodes_file, ("alpha", "beta", "gamma", "delta"), max_restarts=0)
    job.wait_for("4 workers train together")
    assert job.wait() == 0, job.console
    everybody = ("alpha:0", "beta:0", "gamma:0", "delta:0")
    assert_exact(job, epochs=60, workers=everybody)
    assert job.summary()["memberships"] <= 3


REPLACED = {
    "one by one": (("alpha",), ("beta",), {}),
    "one by one, for whom there is no room": (("alpha",), ("beta",), {"max_np": 1}),
    "two by one": (("alpha", "beta"), ("gamma",), {}),
    "two by two, all of whom are needed": (("alpha", "beta"), ("gamma", "delta"), {"min_np": 2}),
}


ONLY_WITH_ALL = ("one by one", "one by one, for whom there is no room", "two by one")


@pytest.mark.parametrize(
    ("before", "after", "settings"),
    [
        pytest.param(*case, marks=[pytest.mark.matrix] * (name in ONLY_WITH_ALL), id=name)
        for name, case in REPLACED.items()
    ],
)
def test_nodes_that_are_all_replaced_hand_the_training_over(start, before, after, settings):
    """They train until others have their state, whatever the limits; nobody calls that a pause."""
    slow = {f"{name}:0": 20.0 for name in before}
    job = start(nodes=before, epochs=60, slow=slow, settings=settings)
    job.wait_for_step(10)
    write_nodes(job.nodes_file, after, max_restarts=0, **settings)
    assert job.wait() == 0, job.console
    leaving = ", ".join(f"{name}:0" for name in before)
    assert f"the training goes on with {leaving} until others have taken over" in job.console
    assert "paused" not in job.console
    assert "all members are lost" not in job.console
    assert_exact(job, epochs=60, workers=[f"{name}:0" for name in after])
