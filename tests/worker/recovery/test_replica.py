"""Replicas: the digest tells them apart, and a copy is equal to the last bit."""

from __future__ import annotations

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn

from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery import transfer
from hetero_hvd.worker.recovery.plain import put_together
from hetero_hvd.worker.recovery.replica import (
    CHUNK_ELEMENTS,
    Replica,
    Trainable,
    _weighted_bits,
    _weights,
    loaded,
    packed,
)
from hetero_hvd.worker.recovery.transfer import copy_state


def take_over(copy, source):
    """One worker's state goes to another one."""
    replicas = [source, copy]

    def work(context):
        rank = context.collective.rank
        copy_state(context.collective, replicas[rank], 0, "state", takers=[1])

    run_together(Hub(2), work)


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


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "uint8", "bool", "complex64"])
def test_the_digest_reads_every_element_of_large_tensors(dtype):
    """Of each type, across the borders of what is summed at once, as the definition says."""
    torch.manual_seed(0)
    found = (torch.randn(2 * CHUNK_ELEMENTS + 5) * 9).to(getattr(torch, dtype))
    sums = _weighted_bits(found)
    flat = torch.view_as_real(found).flatten() if found.is_complex() else found
    flat = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    types = {1: torch.uint8, 2: torch.int16}
    expected = []
    for piece in flat.view(types.get(flat.element_size(), torch.int32)).split(CHUNK_ELEMENTS):
        bits = piece.to(torch.int32)
        bits = (bits ^ (bits >> 15)) * _weights(bits.device)[: len(bits)]
        expected.append(int(bits.sum(dtype=torch.int64)))
    assert sums.tolist() == expected
    for place in (0, 2**15 - 1, 2**15, CHUNK_ELEMENTS, len(found) - 1):
        changed = found.clone()
        changed[place] = 0 if changed[place] else 1
        assert _weighted_bits(changed).tolist() != expected


def test_a_copy_is_equal_and_goes_on_alike():
    """A joiner takes over all of it, what is frozen included, and its next step is the same."""
    source, copy = new_parts(1), new_parts(2)
    source["model"][0].bias.requires_grad_(requires_grad=False)
    take_over(Replica(copy), Replica(source))
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
    with pytest.raises(UserError, match=r"does not fit this one: model: Error.*size mismatch"):
        take_over(Replica(new_parts(1)), Replica(new_parts(1, width=5)))


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
    """A state holds tensors and plain data only; torch's advice to load it anyway is not passed."""
    payload = packed({"evil": Evil()})
    with pytest.raises(UserError, match=r"holds _pytest\S*, which is more than tensors") as caught:
        loaded(payload)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(("piece_bytes", "large_bytes"), [(8, 9), (40, 24), (2**26, 2**20)])
def test_pieces_of_any_size_carry_the_state(monkeypatch, piece_bytes, large_bytes):
    """Tensors that are cut, and many in one piece, empty ones and numbers without dimension."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(transfer, "LARGE_BYTES", large_bytes)
    shared = torch.arange(5.0)
    tensors = [torch.tensor(3), torch.zeros(0), torch.eye(3).T[1:], shared, shared, torch.ones(7)]
    found = [*tensors, torch.tensor([True]), torch.ones(3, dtype=torch.complex64) * 1j]

    class Part:
        def __init__(self, held):
            self.held = held

        def state_dict(self):
            return {"held": self.held}

        def load_state_dict(self, state):
            self.held = state["held"]

    copy = Part([])
    take_over(Replica({"part": copy}), Replica({"part": Part(found)}))
    assert all(map(torch.equal, copy.held, found))


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


KERNELS = [{"fused": True}, {"foreach": True}, {"foreach": False}, {}]


@pytest.mark.parametrize("own", KERNELS)
@pytest.mark.parametrize("theirs", KERNELS)
def test_each_worker_computes_by_its_own_kernels(own, theirs):
    """A script may choose them by the device; with a scaler the wrong ones take no step at all."""

    def made(options):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        return model, optimizer, torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(model, optimizer, scaler):
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    source, target = made(theirs), made(own)
    step(*source)
    replicas = [Replica({"model": m, "optimizer": o}) for m, o, _ in (source, target)]
    replicas[1].load(put_together(loaded(packed(replicas[0].snapshot()))))
    assert replicas[0].checksum() == replicas[1].checksum()
    group = target[1].param_groups[0]
    assert {name: group[name] for name in own} == own
    for parts in (source, target):
        step(*parts)
    for one, other in zip(source[0].parameters(), target[0].parameters(), strict=True):
        torch.testing.assert_close(one, other)
