"""Only the end of a script is a last word; the end of a loop over epochs is none."""

from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import Entered, Finished, Leaving, ScriptEnded, WorkerId

A, B = WorkerId("alpha", 0), WorkerId("beta", 0)
BEGIN, DONE = "begins a loop", "is done with it"
END, LEAVE = "its script ends", "it leaves"
ONE_LOOP = (BEGIN, DONE)

WORDS = {
    BEGIN: lambda worker: Entered(worker=worker),
    DONE: lambda worker: Finished(worker=worker, applied_steps=5, checksum="abc"),
    END: lambda _: ScriptEnded(applied_steps=5),
    LEAVE: lambda _: Leaving(applied_steps=5),
}

CASES = {
    "both train": ((BEGIN,), (BEGIN,), []),
    "both are done, and evaluate": (ONE_LOOP, ONE_LOOP, []),
    "both are in their second loop": ((*ONE_LOOP, BEGIN), (*ONE_LOOP, BEGIN), []),
    "the other is not in the second loop yet": ((*ONE_LOOP, BEGIN), ONE_LOOP, []),
    "the other is in the second loop already": (ONE_LOOP, (*ONE_LOOP, BEGIN), []),
    "the other is through with the epochs": ((BEGIN,), ONE_LOOP, [B]),
    "so it is in the second loop": ((*ONE_LOOP, BEGIN), ONE_LOOP * 2, [B]),
    "the other's script has ended": (ONE_LOOP, (*ONE_LOOP, END), [B]),
    "the other's script has ended early": ((BEGIN,), (BEGIN, END), [B]),
    "the other leaves": ((BEGIN,), (BEGIN, LEAVE), [B]),
}


@pytest.mark.parametrize("name", CASES)
def test_who_waits_for_a_rank_is_not_kept_waiting_by_who_does_not_come(name):
    """A waits for its next rank; B is let go if it has said that it does not train with A."""
    words_of_a, words_of_b, expected = CASES[name]
    slots = []
    for worker, words in ((A, words_of_a), (B, words_of_b)):
        node = NodeConfig(name=worker.node, slots=1, devices=())
        slot = Slot(worker=worker, node=node, output=None, host=str(worker))
        for word in words:
            slot.heard(WORDS[word](worker))
        slots.append(slot)
    lost = []
    membership = SimpleNamespace(
        present=slots,
        rendezvous=SimpleNamespace(waiting={str(A)}),
        _slots=SimpleNamespace(changed=lambda: None),
        lost=lambda host, *, is_orderly: lost.append((host, is_orderly)),
    )
    Membership.release_ended(membership)
    assert [slot.worker for slot in slots if slot.left.is_set()] == expected
    assert lost == [(str(worker), True) for worker in expected]
