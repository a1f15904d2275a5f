"""Restarts are a matter of the record: budget, back-off, quarantine."""

from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.driver.workers.restart_policy import (
    MAX_DELAY_SECONDS,
    PROVEN_SECONDS,
    WINDOW_SECONDS,
    Restarts,
)
from hetero_hvd.messages import WorkerId

ALPHA, OTHER = WorkerId("alpha", 0), WorkerId("alpha", 1)


def fail(restarts, now, *, worker=ALPHA, lived=1.0):
    """One failure."""
    return restarts.failed(worker, now_seconds=now, lived_seconds=lived)


def test_a_flapping_slot_waits_twice_as_long_each_time():
    """Up to a limit."""
    restarts = Restarts(100)
    assert [fail(restarts, now) for now in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_worker_that_lived_long_starts_with_a_clean_record():
    """What ended it has nothing to do with the start of the job."""
    restarts = Restarts(100)
    assert [fail(restarts, 0), fail(restarts, 1)] == [1, 2]
    assert fail(restarts, 200, lived=PROVEN_SECONDS) == 1


def test_the_budget_fills_up_again():
    """Only failures within the window count."""
    restarts = Restarts(1)
    assert fail(restarts, 0) == 1
    assert fail(restarts, 1) == "2 failures within 600 s"
    assert isinstance(fail(restarts, 2 + WINDOW_SECONDS), float)


def test_a_node_is_quarantined_when_several_of_its_slots_fail():
    """Not a single slot's fault: the others of the node are not worth a restart either."""
    restarts = Restarts(2)
    first = [fail(restarts, now, worker=(ALPHA, OTHER)[now % 2]) for now in range(4)]
    assert all(isinstance(verdict, float) for verdict in first)
    third = WorkerId("alpha", 2)
    assert fail(restarts, 5, worker=third) == "5 failures of 3 slots of node alpha"
    assert isinstance(fail(restarts, 5, worker=WorkerId("beta", 0)), float)


def test_a_changed_entry_is_worth_a_new_try():
    """The user has done something about it."""
    restarts = Restarts(0)
    assert isinstance(fail(restarts, 0), str)
    restarts.budget = 1
    restarts.reset(ALPHA)
    assert fail(restarts, 1) == 1


@given(st.lists(st.floats(0, 400), min_size=1, max_size=30), st.integers(0, 5))
def test_never_more_restarts_than_the_budget_within_a_window(gaps, budget):
    """Whatever the failures' times; and no delay is longer than the limit."""
    restarts, now, granted = Restarts(budget), 0.0, []
    for gap in gaps:
        now += gap
        verdict = fail(restarts, now)
        if isinstance(verdict, float):
            assert 0 < verdict <= MAX_DELAY_SECONDS
            granted.append(now)
        assert len([at for at in granted if at > now - WINDOW_SECONDS]) <= budget
