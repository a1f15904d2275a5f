"""Replicas: the digest tells them apart, and a copy is equal to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hetero_hvd.errors import UserError
from hetero_hvd.worker.position import Position
from hetero_hvd.worker.replica import Replica, Trainable


def new_parts(seed, *, width=4):
    """A model, its optimizer after one step, and where training stands."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    position = Position(epoch=seed, loss=0.25, evaluations=[{"accuracy": 0.5}])
    return {
        "model": model,
        "trainable": Trainable(model),
        "optimizer": optimizer,
        "position": position,
    }


def test_the_same_training_has_the_same_digest():
    """Two workers that did the same agree; one that did something else does not."""
    first, same, other = (Replica(new_parts(seed)).checksum() for seed in (1, 1, 2))
    assert first == same != other


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts["model"][0].weight.data[0, 0].mul_(1 + 2**-23),
        lambda parts: parts["model"][1].running_mean.add_(1e-3),
        lambda parts: parts["model"][0].bias.requires_grad_(requires_grad=False),
        lambda parts: parts["optimizer"].param_groups[0].update(lr=0.5),
        lambda parts: next(iter(parts["optimizer"].state.values()))["exp_avg"].neg_(),
        lambda parts: parts["position"].advance(0.0),
    ],
    ids=["weight", "statistic", "frozen", "learning rate", "moment", "position"],
)
def test_the_digest_notices_every_change(change):
    """The last bit of a weight, a statistic, what is frozen, the optimizer, the position."""
    parts = new_parts(1)
    before = Replica(parts).checksum()
    change(parts)
    assert Replica(parts).checksum() != before


def test_a_copy_is_equal_and_goes_on_alike():
    """A joiner takes over all of it, what is frozen included, and its next step is the same."""
    source, copy = new_parts(1), new_parts(2)
    source["model"][0].bias.requires_grad_(requires_grad=False)
    Replica(copy).load(Replica(source).dump())
    assert Replica(copy).checksum() == Replica(source).checksum()
    assert copy["position"] == source["position"]
    assert not copy["model"][0].bias.requires_grad
    x = torch.randn(5, 3)
    for parts in (source, copy):
        parts["optimizer"].zero_grad()
        parts["model"](x).pow(2).sum().backward()
        parts["optimizer"].step()
    assert Replica(copy).checksum() == Replica(source).checksum()


def test_a_state_that_does_not_fit_is_refused():
    """Workers that build different models are told so."""
    with pytest.raises(UserError, match="does not fit this one"):
        Replica(new_parts(1)).load(Replica(new_parts(1, width=5)).dump())


class Evil:
    """A state that would run code when unpickled."""

    def state_dict(self):
        """Its state."""
        return {"run": self}

    def load_state_dict(self, state):
        """Never reached."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_nothing_is_unpickled_that_could_run():
    """A state from another worker holds tensors and plain data only."""
    payload = Replica({"evil": Evil()}).dump()
    with pytest.raises(UserError, match="does not fit"):
        Replica({"evil": Evil()}).load(payload)


def test_the_digest_depends_on_where_a_value_is():
    """Exchanged weights, and equal shifts of weights of both signs, are noticed."""
    linear = nn.Linear(1, 4, bias=False)
    linear.weight.data = torch.tensor([[0.0571], [0.0274], [-0.0341], [-0.0215]])
    replica = Replica({"model": linear})
    before = replica.checksum()
    linear.weight.data.add_(1e-3)  # a plain sum of the bits stays the same
    shifted = replica.checksum()
    linear.weight.data.add_(-1e-3).copy_(linear.weight.data.flip(0))
    assert len({before, shifted, replica.checksum()}) == 3
