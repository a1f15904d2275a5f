"""The copies of a part are compared: a bit that has flipped in one is told, with whose they are."""

from __future__ import annotations

import logging

import pytest
import torch
from msgspec.structs import replace
from rendezvous import Hub, run_together
from sharded_script import Script, check

from hetero_hvd.worker.recovery import replica_check


class Damaged(Script):
    """After its fifth step a bit of what one worker holds flips."""

    def __init__(self, context, *, damaged=None, entry="exp_avg", bit=18, arithmetics=("",) * 4):
        super().__init__(context)
        self.damaged = damaged
        self.entry = entry
        self.bit = bit
        state = self.trainer._state
        state._check_steps = 2
        state.work = replace(state.work, arithmetic=arithmetics[self.rank])

    def after_step(self):
        """Flip it."""
        super().after_step()
        if self.rank == self.damaged and self.trainer.applied_steps == 5:
            state = next(iter(self.shards.slices._twin.state.values()))
            state[self.entry].view(torch.int32).view(-1)[0] ^= 1 << self.bit


@pytest.fixture(autouse=True)
def _small_digests(monkeypatch):
    """So that a part has several."""
    monkeypatch.setattr(replica_check, "CHECK_BLOCKS", 2)


def errors(caplog):
    """What was told."""
    return [r.message for r in caplog.records if r.levelno >= logging.ERROR]


def assert_equal_copies(scripts):
    """Whatever they hold."""
    held = {}
    for script in scripts:
        for key, value in script.states().items():
            held.setdefault(key, []).append(value)
    assert all(each == copies[0] for copies in held.values() for each in copies)


@pytest.mark.parametrize("entry", ["exp_avg", "exp_avg_sq", "step"])
def test_a_flipped_bit_is_told_with_whose_copies_differ(undisturbed, entry, caplog):
    """Both have the same afterwards; that of who does not tell the parameters changes nothing."""
    told = []
    for damaged in range(3):
        caplog.clear()
        scripts = run_together(
            Hub(3), lambda c, n=damaged: Damaged(c, damaged=n, entry=entry).run()
        )
        words = errors(caplog)
        assert words[0].startswith(
            "at step 5 the copies of a part of the optimizer's state differ: "
        )
        assert f"node:{damaged}" in words[0]
        assert f".{entry}" in words[0]
        told.append(any(f"that of node:{damaged}" in each for each in words))
        if told[-1]:  # the parameters have followed it already
            assert all(torch.equal(script.values, scripts[0].values) for script in scripts)
            assert_equal_copies(scripts)
        else:
            check(scripts, undisturbed)
    assert False in told


def test_equal_copies_are_not_told_and_nothing_is_lost_by_looking(undisturbed, caplog):
    """Whatever moves meanwhile."""
    hub = Hub(4, [(1, "totals.0", 4, "unsent")])
    scripts = run_together(hub, lambda c: Damaged(c).run())
    assert hub.fired == hub.faults
    check(scripts, undisturbed)
    assert not errors(caplog)


def test_what_unlike_processors_make_of_the_last_digits_is_left(caplog):
    """As with replicas; more than that is told."""
    for bit, is_told in ((0, False), (28, True)):
        options = {"damaged": 1, "bit": bit, "arithmetics": ("one", "another", "third")}
        run_together(Hub(3), lambda c, o=options: Damaged(c, **o).run())
        assert bool(errors(caplog)) == is_told


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["checksums of parts", "entries of parts", "shards.all.1"])
def test_a_fault_while_they_are_compared_changes_nothing(operation, when, caplog):
    """All meet again, and the next comparison finds it."""
    hub = Hub(3, [(2, operation, 3 if operation[0] == "c" else 1, when)])
    scripts = run_together(hub, lambda c: Damaged(c, damaged=1).run())
    assert hub.fired == hub.faults
    assert_equal_copies(scripts)
    assert errors(caplog)
