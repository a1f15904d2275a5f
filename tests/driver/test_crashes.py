"""Whose an error is: the script's, which ends the job, or one worker's, which is lost."""

import asyncio
from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.crashes import Crashes
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import Crashed, Entered, Finished, ScriptEnded, WorkerId

TRAINS, FINISHES, ENDS = "trains", "has finished its epochs", "and its script has ended"
RAISES, RAISES_ANOTHER = "raises the same right after", "raises another one right after"
LOOP = (TRAINS, FINISHES)
OWN, ALL = "is lost", "ends the job"

CASES = {
    "others train": ((TRAINS,), (TRAINS,), False, None),
    "the other waits for it": ((TRAINS,), (TRAINS,), True, OWN),
    "nobody else is there": ((TRAINS,), None, False, ALL),
    "the other has ended without its epochs": ((TRAINS,), (TRAINS, ENDS), False, ALL),
    "the other has trained to the end": ((TRAINS,), (TRAINS, FINISHES, ENDS), False, OWN),
    "alone, after its epochs": ((TRAINS, FINISHES), None, False, ALL),
    "the other has trained to the end of the second loop": (
        (*LOOP, TRAINS),
        (*LOOP, *LOOP, ENDS),
        False,
        OWN,
    ),
    "the other has ended in the second loop": ((*LOOP, TRAINS), (*LOOP, TRAINS, ENDS), False, ALL),
    "the other has ended after the first loop": ((*LOOP, TRAINS), (*LOOP, ENDS), False, ALL),
    "after the loop, the other's script has ended well": (LOOP, (*LOOP, ENDS), False, OWN),
    "the other trains again": (LOOP, (*LOOP, TRAINS), False, None),
    "the other waits for it in the second loop": ((*LOOP, TRAINS), (*LOOP, TRAINS), True, OWN),
    "the same on both, in the first loop": ((TRAINS,), (TRAINS, RAISES), False, ALL),
    "the same on both, in the second loop": ((*LOOP, TRAINS), (*LOOP, TRAINS, RAISES), False, ALL),
    "the same on both, after the loop": (LOOP, (*LOOP, RAISES), False, ALL),
    "another on the other, in the second loop": (
        (*LOOP, TRAINS),
        (*LOOP, TRAINS, RAISES_ANOTHER),
        False,
        ALL,
    ),
    "another on the other, after the loop": (LOOP, (*LOOP, RAISES_ANOTHER), False, ALL),
}
"""What has happened on the worker and on the other one, whether that waits, and what follows."""

WORDS = {
    TRAINS: lambda worker: Entered(worker=worker),
    FINISHES: lambda worker: Finished(worker=worker, applied_steps=5, checksum="abc"),
    ENDS: lambda _: ScriptEnded(applied_steps=5),
}
ERRORS = {RAISES: "ValueError: no", RAISES_ANOTHER: "KeyError: 'no'"}


def slot_of(name, words):
    """A member that has said these words."""
    worker = WorkerId(name, 0)
    output = SimpleNamespace(hold=lambda: None, release=lambda: None, drop=lambda: None)
    node = NodeConfig(name=name, slots=1, devices=())
    slot = Slot(worker=worker, node=node, output=output, host=name)
    for word in words:
        if word in WORDS:
            slot.heard(WORDS[word](worker))
    return slot


def judging(slots):
    """Who judges their errors, their membership, how the job has ended, and what was said."""
    ended, said = [], []
    membership = SimpleNamespace(
        present=slots,
        hosts={slot.host for slot in slots},
        rendezvous=SimpleNamespace(waiting=set()),
    )
    pool = SimpleNamespace(all=slots, judged=asyncio.Event())
    console = SimpleNamespace(say=lambda words, _: said.append(words))
    return Crashes(pool, membership, console, ended.append), membership, ended, said


def raise_in(slot, crashes, error):
    """The script ends in this error on a worker; its process is gone a moment later."""
    told = Crashed(worker=slot.worker, error=error, traceback="", user_error=False)
    slot.heard(told)
    crashes.add(slot, told, 5)
    slot.num_entered = slot.num_finished = 0


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_the_scripts_unless_the_others_do_without(name):
    """An exit code on one worker does not undo what another has trained to the end."""
    own, other, is_waiting, expected = CASES[name]
    slots = [slot_of("alpha", own)] + ([] if other is None else [slot_of("beta", other)])
    crashes, membership, ended, said = judging(slots)
    membership.rendezvous.waiting = {"beta"} if is_waiting else set()
    raise_in(slots[0], crashes, ERRORS[RAISES])
    for word in () if other is None else other:
        if word in ERRORS:
            raise_in(slots[1], crashes, ERRORS[word])
    crashes.look()
    assert [ending.exit_code for ending in ended] == ([5] if expected == ALL else [])
    assert any("only this worker has raised it" in line for line in said) == (expected == OWN)


KILLED = "RuntimeError: DataLoader worker (pid 9873) is killed by signal: Killed. "
SHM = (
    "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory."
)
GONE = "RuntimeError: DataLoader worker (pid(s) 4, 5) exited unexpectedly"


@pytest.mark.parametrize(
    ("first", "second", "where", "expected"),
    [
        (KILLED, KILLED, "beta", OWN),
        (KILLED, KILLED, "alpha", OWN),
        (SHM, KILLED, "beta", OWN),
        (GONE, GONE, "alpha", OWN),
        (KILLED, "ValueError: no", "alpha", OWN),
        ("ValueError: no", KILLED, "beta", OWN),
        ("ValueError: no", "ValueError: no", "beta", ALL),
        ("ValueError: no", "KeyError: no", "alpha", ALL),
        ("ValueError: no", "KeyError: no", "beta", OWN),
        ("ValueError: DataLoader worker", "ValueError: DataLoader worker", "beta", ALL),
    ],
)
def test_what_comes_a_second_time(first, second, where, expected):
    """A loader's process that the system kills is lost as a worker is, however often."""
    slots = [slot_of(name, (TRAINS,)) for name in ("alpha", "beta", "gamma")]
    crashes, membership, ended, said = judging(slots)
    for name, error in (("alpha", first), (where, second)):
        slot = next(each for each in slots if each.worker.node == name)
        slot.last_word = None  # it has been started again
        membership.rendezvous.waiting = {each.host for each in slots if each is not slot}
        raise_in(slot, crashes, error)
        crashes.look()
    assert bool(ended) == (expected == ALL)
    warned = [line for line in said if "only this worker has raised it" in line]
    assert len(warned) == (2 if expected == OWN else 1)
    assert ("ends the job" in warned[0]) == (first not in {KILLED, SHM, GONE})


def test_an_error_that_the_others_have_left_behind_is_no_other_ones():
    """The next one comes before anybody has looked: they have met without the first one by then."""
    slots = [slot_of(name, (TRAINS,)) for name in ("alpha", "beta", "gamma")]
    crashes, membership, ended, said = judging(slots)
    for slot, error in zip(slots[:2], ("ValueError: no", "OSError: no"), strict=True):
        told = Crashed(worker=slot.worker, error=error, traceback="", user_error=False)
        slot.heard(told)
        crashes.add(slot, told, 1)
        membership.hosts = membership.hosts - {slot.host}
        membership.present = [other for other in slots if other.host in membership.hosts]
    crashes.look()
    assert not ended
    assert sum("only this worker has raised it" in line for line in said) == 2
