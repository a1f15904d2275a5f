"""Whose an error is: the script's, which ends the job, or one worker's, which is lost."""

import asyncio
from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.crashes import Crashes
from hetero_hvd.driver.slot import Slot
from hetero_hvd.messages import Crashed, Entered, Finished, ScriptEnded, WorkerId

TRAINS, FINISHES, ENDS = "trains", "has finished its epochs", "and its script has ended"
OWN, ALL = "is lost", "ends the job"

CASES = {
    "others train": ((TRAINS,), (TRAINS,), False, None),
    "the other waits for it": ((TRAINS,), (TRAINS,), True, OWN),
    "nobody else is there": ((TRAINS,), None, False, ALL),
    "the other has ended without its epochs": ((TRAINS,), (TRAINS, ENDS), False, ALL),
    "the other has trained to the end": ((TRAINS,), (TRAINS, FINISHES, ENDS), False, OWN),
    "alone, after its epochs": ((TRAINS, FINISHES), None, False, ALL),
}
"""What has happened on the worker and on the other one, whether that waits, and what follows."""

WORDS = {
    TRAINS: lambda worker: Entered(worker=worker),
    FINISHES: lambda worker: Finished(worker=worker, applied_steps=5, checksum="abc"),
    ENDS: lambda _: ScriptEnded(applied_steps=5),
}


def slot_of(name, words):
    """A member that has said these words."""
    worker = WorkerId(name, 0)
    output = SimpleNamespace(hold=lambda: None, release=lambda: None, drop=lambda: None)
    node = NodeConfig(name=name, slots=1, devices=())
    slot = Slot(worker=worker, node=node, output=output, host=name)
    for word in words:
        slot.heard(WORDS[word](worker))
    return slot


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_the_scripts_unless_the_others_do_without(name):
    """An exit code on one worker does not undo what another has trained to the end."""
    own, other, is_waiting, expected = CASES[name]
    slots = [slot_of("alpha", own)] + ([] if other is None else [slot_of("beta", other)])
    ended, said = [], []
    membership = SimpleNamespace(
        present=slots,
        hosts={slot.host for slot in slots},
        rendezvous=SimpleNamespace(waiting={"beta"} if is_waiting else set()),
    )
    pool = SimpleNamespace(all=slots, judged=asyncio.Event())
    crashes = Crashes(pool, membership, SimpleNamespace(say=said.append), ended.append)
    told = Crashed(worker=slots[0].worker, error="ValueError: no", traceback="", user_error=False)
    slots[0].heard(told)
    crashes.add(slots[0], told, 5)
    crashes.look()
    assert [ending.exit_code for ending in ended] == ([5] if expected == ALL else [])
    assert any("only this worker has raised it" in line for line in said) == (expected == OWN)


def test_an_error_that_the_others_have_left_behind_is_no_other_ones():
    """The next one comes before anybody has looked: they have met without the first one by then."""
    slots = [slot_of(name, (TRAINS,)) for name in ("alpha", "beta", "gamma")]
    ended, said = [], []
    membership = SimpleNamespace(
        present=slots,
        hosts={slot.host for slot in slots},
        rendezvous=SimpleNamespace(waiting=set()),
    )
    pool = SimpleNamespace(all=slots, judged=asyncio.Event())
    crashes = Crashes(pool, membership, SimpleNamespace(say=said.append), ended.append)
    for slot, error in zip(slots[:2], ("ValueError: no", "OSError: no"), strict=True):
        told = Crashed(worker=slot.worker, error=error, traceback="", user_error=False)
        slot.heard(told)
        crashes.add(slot, told, 1)
        membership.hosts = membership.hosts - {slot.host}
        membership.present = [other for other in slots if other.host in membership.hosts]
    crashes.look()
    assert not ended
    assert sum("only this worker has raised it" in line for line in said) == 2
