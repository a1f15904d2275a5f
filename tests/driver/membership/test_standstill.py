"""Members that wait for each other in different operations are found, and nobody else."""

import re

import pytest

from hetero_hvd.driver.membership.standstill import STANDSTILL_SECONDS, Standstill
from hetero_hvd.messages import Heartbeat, WorkerId

A, B, C = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
STEP, EVALUATE, END = "trainer.step()", "trainer.evaluate()", "the end of trainer.epochs()"

WAITS = {
    "the leader alone evaluates": ((EVALUATE, STEP), ("alpha", "beta")),
    "the leader alone takes a step": ((STEP, END), ("alpha", "beta")),
    "one worker skips an evaluation": ((EVALUATE, END, EVALUATE), ("alpha", "beta")),
    "one worker has fewer epochs": ((END, STEP, STEP), ("alpha", "beta")),
    "all wait for a slow network": ((STEP, STEP, STEP), None),
    "one still computes": ((EVALUATE, STEP, ""), None),
    "nothing is known of one": ((EVALUATE, STEP, None), None),
}


@pytest.mark.parametrize("name", WAITS)
def test_who_waits_in_what_is_told_where_nobody_can_get_on(name):
    """All wait, not all in the same operation, for as long as no reduction takes."""
    operations, named = WAITS[name]
    standstill, members = Standstill(), (A, B, C)[: len(operations)]
    for second in range(int(STANDSTILL_SECONDS) + 1):
        for worker, operation in zip(members, operations, strict=True):
            if operation is not None:
                beat = Heartbeat(applied_steps=3, operation=operation, place="train.py:41")
                standstill.told(worker, beat, float(second))
        if second < STANDSTILL_SECONDS:
            assert not standstill.found(members, second + 0.5)
    found = standstill.found(members, STANDSTILL_SECONDS)
    if named is None:
        assert not found
    else:
        told = re.findall(r"(\w+):0 waits in (.*?) \(train.py:41\)", found)
        assert tuple(worker for worker, _ in told) == named
        assert [operation for _, operation in told] == list(dict.fromkeys(operations))
        assert found.endswith("every worker must call the same, in the same order")


def test_a_worker_that_gets_on_is_not_stuck():
    """Its steps grow, though each look finds it in another operation than the others."""
    standstill = Standstill()
    for second in range(20):
        standstill.told(A, Heartbeat(applied_steps=second, operation=EVALUATE), float(second))
        standstill.told(B, Heartbeat(applied_steps=second, operation=STEP), float(second))
        assert not standstill.found((A, B), second + 0.9)


PAUSES = {
    "one holds its interpreter after its evaluation": ((EVALUATE, STEP), (A,)),
    "the driver itself was stopped": ((EVALUATE, STEP), (A, B)),
}


@pytest.mark.parametrize("name", PAUSES)
def test_what_a_silent_worker_said_before_is_no_evidence(name):
    """Nobody knows where it is meanwhile; once it is heard again its wait counts from there."""
    operations, silent = PAUSES[name]
    standstill = Standstill()

    def found(second):
        return standstill.found((A, B), second + 0.5)

    for second in range(30):
        is_paused = 2 < second < 20
        for worker, operation in zip((A, B), operations, strict=True):
            if not (is_paused and worker in silent):
                standstill.told(worker, Heartbeat(applied_steps=3, operation=operation), second)
        if second < 20 + STANDSTILL_SECONDS:
            assert not found(second)
    assert found(29)
