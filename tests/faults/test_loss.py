"""Workers that die: whoever it is, whenever it happens, the others go on at once."""

import time

import pytest

from benchmarks.faults.recovery import split
from hetero_hvd.probes.horovod_build import corrections
from hetero_hvd.run.event_bus import steady_time

from .conftest import BATCH, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LIMIT_SECONDS = 15.0  # half of what Gloo waits for; docs/operations/faults.md has what was measured


PARTS = ["leaving", "meeting", "connections", "checksum", "reports", "vote", "plan"]

DEATHS = [
    [("beta:0", "kill", "loss"), ("alpha:0", "kill", "load")],
    [("alpha:0", "kill", "loss"), ("beta:0", "segfault", "loss"), ("gamma:0", "exit", "after")],
]


@pytest.mark.parametrize("deaths", DEATHS, ids=["before", "in and after"])
def test_a_death_costs_one_worker_and_no_step(start, deaths):
    """Before, in or after its part of a step, rank 0 or another: nothing is lost or repeated."""
    faults = [
        {"worker": worker, "step": 10 * number, "kind": kind, "place": place}
        for number, (worker, kind, place) in enumerate(deaths, 1)
    ]
    names = ("alpha", "beta", "gamma", "delta", "epsilon")[: len(deaths) + 2]
    job = start(*faults, nodes=names, epochs=12, settings={"balance": False})  # nobody idles
    assert job.wait() == 0, job.console
    guilty = {worker for worker, _, _ in deaths}
    assert_exact(job, epochs=12, workers={f"{name}:0" for name in names} - guilty)
    for number in range(len(deaths)):
        assert job.recovery_seconds(number) < LIMIT_SECONDS
    # The survivors of each death say so; where all reductions were over there is nothing to repeat.
    said = sum(len(names) - n for n, (*_, place) in enumerate(deaths, 1) if place != "after")
    assert job.console.count("(interrupted, nothing copied)") >= said
    assert_told(job, len(names) - 1)
    assert all(result["holds_life_lock"] for result in job.results())


def assert_told(job, num_left):
    """The record says where the time of the first recovery went, part by part."""
    found = split(job, steady_time()() - time.monotonic())
    assert len(found.workers) == num_left
    assert sum(found.parts.values()) == pytest.approx(found.seconds, abs=1e-3)
    for parts in found.workers.values():
        assert list(parts) == PARTS
        assert 0 < sum(parts.values()) < found.seconds
    if "addresses-come-at-once" in corrections():
        assert found.num_requests == 3 * num_left  # for a rank, its addresses, those of all


@pytest.mark.parametrize(
    "delay_seconds",
    [0.1, *(pytest.param(delay, marks=pytest.mark.matrix) for delay in (0.02, 0.2))],
)
def test_a_second_death_during_the_recovery(start, delay_seconds):
    """The rendezvous under way is refused and tried again without the second one."""
    first = {"worker": "beta:0", "step": 10, "kind": "kill"}
    second = {"worker": "gamma:0", "kind": "kill", "after_fault": 0, "delay_seconds": delay_seconds}
    job = start(first, second, nodes=("alpha", "beta", "gamma", "delta"))
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "delta:0"))
    assert job.recovery_seconds(1) < LIMIT_SECONDS


def test_two_deaths_in_one_step(start):
    """Two at once are one recovery."""
    faults = [{"worker": name, "step": 10, "kind": "kill"} for name in ("alpha:0", "beta:0")]
    job = start(*faults)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("gamma:0",))


@pytest.mark.matrix
def test_a_joiner_that_dies_while_it_joins_costs_nobody_else(start):
    """Killed again right after its restart, at the first step that it takes part in."""
    faults = [
        {"worker": "beta:0", "step": 10, "kind": "kill"},
        {"worker": "beta:0", "kind": "kill", "after_fault": 0, "delay_seconds": 0.0},
    ]
    job = start(*faults, epochs=60, num_workers=3, patient_from=30, settings={"max_restarts": 2})
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=60, workers=("alpha:0", "beta:0", "gamma:0"))


def test_a_restarted_worker_joins_and_holds_up_nobody(start):
    """It takes over the others' state, momentum and weight decay included.

    Its restart takes 3 s before it is announced; the others take their steps meanwhile.
    """
    faults = [
        {"worker": "beta:0", "step": 10, "kind": "kill"},
        {
            "worker": "beta:0",
            "step": 0,
            "place": "start",
            "kind": "sleep",
            "seconds": 3,
            "once_fired": 0,
        },
    ]
    settings = {"max_restarts": 1}
    job = start(*faults, epochs=150, num_workers=3, patient_from=400, settings=settings)
    assert job.wait() == 0, job.console
    killed_at, restarted_at = job.fired()
    assert restarted_at > killed_at
    meanwhile = [line for line in job.trace() if restarted_at < line[0] < restarted_at + 3]
    assert len(meanwhile) > 5, job.console  # of 0.3 s each, once they are patient
    assert_exact(job, epochs=150, workers=("alpha:0", "beta:0", "gamma:0"))
    assert job.longest_gap_seconds() < LIMIT_SECONDS
    told = (
        "beta:0 was ended by SIGKILL",
        "restart 1 in 1 s",
        "2 workers train together: alpha:0, gamma:0",
        "3 workers train together: alpha:0, gamma:0, beta:0",
    )
    assert all(line in job.console for line in told), job.console
    assert job.summary()["workers"]["beta:0"]["exit_codes"] == [137, 0]


def test_a_slot_that_keeps_dying_is_quarantined(start):
    """Its budget is spent, the reason is given, the others finish."""
    faults = [
        {"worker": "beta:0", "step": 6, "kind": "kill"},
        {"worker": "beta:0", "step": 0, "place": "start", "kind": "exit", "code": 3},
    ]
    job = start(*faults, nodes=("alpha", "beta"), epochs=12)
    assert job.wait() == 0, job.console
    assert "beta:0 is given up after 0 restarts: 1 failures within 600 s" in job.console


def test_too_few_workers_pause_the_job_until_others_come(start):
    """Below min_np the survivors wait, in one clear line, and go on when the slot is back."""
    job = start(
        {"worker": "beta:0", "step": 10, "kind": "kill"},
        nodes=("alpha", "beta"),
        settings={"max_restarts": 1, "min_np": 2},
    )
    assert job.wait() == 0, job.console
    assert "paused: 1 workers are left, min_np is 2" in job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "beta:0"))


def test_a_loss_that_leaves_too_little_room_costs_time_only(start):
    """Two that may hold half a batch at a time: the one that is left takes it in two passes."""
    nodes = [
        {"name": name, "slots": 1, "devices": [], "max_local_batch_size": BATCH // 2}
        for name in ("alpha", "beta")
    ]
    job = start({"worker": "beta:0", "step": 10, "kind": "kill"}, nodes=nodes)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0",))
    assert "take 32 samples at a time (max_local_batch_size) of the 64 of a step" in job.console
