"""A state goes from those who have it to those who want it, each of whom sends a part."""

import pytest
import torch
from rendezvous import Hub, run_together

from hetero_hvd.worker.comm.horovod import HorovodCollective, Interrupted
from hetero_hvd.worker.recovery import transfer
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.transfer import copy_state

CASES = {
    "one from one": (2, 0, [1]),
    "one from another": (2, 1, [0]),
    "the first from two": (3, 1, [0]),
    "one in the middle from three": (4, 0, [2]),
    "two from two": (4, 2, [0, 3]),
    "three from one": (4, 1, [0, 2, 3]),
    "three from two": (5, 4, [0, 1, 3]),
    "nobody": (2, 0, []),
}
"""Name to how many workers there are, the source, and who takes over."""


class Part:
    """A part of a state; a tensor of each kind of size that pieces make a difference between."""

    def __init__(self, value, *, turned=False):
        self.held = {
            "cut": torch.full((50,), value),
            "whole": torch.full((4, 5), value).t(),
            "small": torch.full((1,), value),
            "few": torch.full((3,), value, dtype=torch.bool),
            "none": torch.zeros(0),
        }
        if turned:
            self.held = dict(reversed(self.held.items()))

    def state_dict(self):
        """All of it."""
        return self.held

    def load_state_dict(self, state):
        """The same."""
        self.held = state


def is_of(part, value):
    """Whether all of it has this value."""
    return all(
        bool((tensor == torch.full_like(tensor, value)).all()) for tensor in part.held.values()
    )


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Some tensors are cut, others go together."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 80)
    monkeypatch.setattr(transfer, "LARGE_BYTES", 40)


@pytest.mark.parametrize(("size", "source", "takers"), CASES.values(), ids=CASES)
def test_takers_have_what_the_source_has(size, source, takers, monkeypatch):
    """Also if they are many; who has it keeps it, and sends no more than its part."""
    parts = [Part(2.0 if rank in takers else 1.0) for rank in range(size)]
    sent = [0] * size
    exchange = HorovodCollective.exchange

    def counted(self, rows, counts, name):
        sent[self.rank] += len(rows)
        return exchange(self, rows, counts, name)

    monkeypatch.setattr(HorovodCollective, "exchange", counted)

    def work(context):
        rank = context.collective.rank
        copy_state(context.collective, Replica({"part": parts[rank]}), source, "it", takers=takers)

    run_together(Hub(size), work)
    assert all(is_of(part, 1.0) for part in parts)
    num_holders = size - len(takers)
    num_bytes = sum(tensor.nbytes for tensor in parts[0].held.values())
    if len(takers) > num_holders:
        assert sent == [0] * size  # it was broadcast
    else:
        assert sum(sent) == num_bytes * len(takers)
        assert max(sent) <= len(takers) * (num_bytes / num_holders + 10)


def test_who_has_it_in_another_order_does_not_send():
    """Its pieces would be others."""
    parts = [Part(1.0), Part(1.0, turned=True), Part(2.0)]

    def work(context):
        rank = context.collective.rank
        copy_state(context.collective, Replica({"part": parts[rank]}), 0, "it", takers=[2])

    run_together(Hub(3), work)
    assert is_of(parts[2], 1.0)
    assert list(parts[2].held) == list(parts[0].held)


@pytest.mark.parametrize("when", ["before", "after", "unsent", "sent"])
@pytest.mark.parametrize("guilty", [0, 1, 2])
@pytest.mark.parametrize("operation", ["it.forms", "it.form.0", "it.0", "it.1"])
def test_what_is_broken_on_its_way_is_not_taken_over(operation, guilty, when):
    """The taker keeps what it had, and can take the state in the next rendezvous."""
    parts = [Part(1.0), Part(1.0), Part(2.0)]
    hub = Hub(3, [(guilty, operation, 1, when)])

    def work(context):
        collective, own = context.collective, context.settings.worker.slot
        while True:
            members = collective._hvd.members
            takers = [rank for rank, member in enumerate(members) if member == 2]
            try:
                replica = Replica({"part": parts[own]})
                copy_state(collective, replica, int(0 in takers), "it", takers=takers)
                break
            except Interrupted:
                assert is_of(parts[own], 2.0 if own == 2 else 1.0)
                collective.restart()

    run_together(hub, work)
    dead = {guilty} if when in {"unsent", "sent"} else set()
    assert all(is_of(part, 1.0) for rank, part in enumerate(parts) if rank not in dead)
    assert hub.fired
