"""Batch normalisation over all workers, whatever each of them holds."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.nn.functional import batch_norm
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd import Trainer, UserError
from hetero_hvd.messages import BatchPlan
from hetero_hvd.worker.model import sync_batch_norm_rounds

torch.manual_seed(0)
INITIAL = hetero_hvd.convert_sync_batch_norm(
    nn.Sequential(
        nn.Conv1d(2, 5, 1), nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5, momentum=None)
    )
)
BATCH = 16
DATA = torch.randn(BATCH, 2, 3)


class Planner:
    """These shares, for ever."""

    def __init__(self, shares):
        self.shares = shares

    def use_grain(self, _grain):
        """Of no interest."""

    def joined(self, event):
        """The only plan."""
        return BatchPlan(
            rendezvous_id=event.rendezvous_id, plan_id=1, from_step=0, exchange_steps=1,
            workers=event.workers, local_batch_sizes=self.shares, reason="",
        )  # fmt: skip

    def timed(self, event):
        """Of no interest."""

    def newest(self):
        """No other."""


def train(context, shares, micro_batch_size, *, loss=None, num_steps=1, dtype=torch.float32):
    """Steps of SGD; the model."""
    context.planner = Planner(shares)
    model = copy.deepcopy(INITIAL).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(DATA.to(dtype)), BATCH)
    trainer = Trainer(model, optimizer, loader, micro_batch_size=micro_batch_size)
    trainer._state._context = context
    for _ in trainer.epochs(num_steps):
        for (x,) in trainer.batches():
            trainer.step(lambda x: (loss or default_loss)(model, x), x)
    return model


def default_loss(model, x):
    """Something that depends on each value."""
    return model(x).pow(3).mean()


def expected(shares, micro_batch_size, dtype):
    """One step in one process: round by round over what all workers hold at the same time."""
    model = nn.Sequential(
        copy.deepcopy(INITIAL[0]), nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5, momentum=None)
    ).to(dtype)
    pieces = [part.split(micro_batch_size) for part in DATA.to(dtype).split(shares) if len(part)]
    for number in range(max(map(len, pieces))):
        joint = torch.cat([own[number] for own in pieces if number < len(own)])
        (default_loss(model, joint) * len(joint) / BATCH).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shares", "size"), [((5, 11), 4), ((0, 16), 6), ((1, 15), 16), ((3, 13), 2), ((1, 3, 12), 5)]
)
def test_workers_with_fewer_micro_batches_help_the_others(shares, size, dtype):
    """Parameters and running statistics are those of one process that joins the rounds."""
    models = run_together(
        Hub(len(shares)), lambda context: train(context, shares, size, dtype=dtype)
    )
    alone = expected(shares, size, dtype).state_dict()
    near = 1e-5 if dtype == torch.float32 else 1e-12
    for model in models:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, alone[name], rtol=near, atol=0.1 * near)


def test_a_micro_batch_without_weight_is_no_reason_to_wait():
    """Its worker has no backward pass there, and the others get zeros for it."""

    def loss(model, x):
        output = model(x)
        return (output * torch.nan).mean() if len(x) == 3 else output.pow(3).mean(), len(x) - 3

    first, second = run_together(
        Hub(2), lambda context: train(context, (3, 13), 13, loss=loss, num_steps=2)
    )
    assert torch.equal(first[0].weight, second[0].weight)
    assert not torch.equal(first[0].weight, INITIAL[0].weight)
    assert first[0].weight.isfinite().all()


def test_a_wait_for_others_is_known_as_soon_as_it_is_over():
    """An emulated device has to know at the end of its passes what was none of its compute."""
    waited = {}

    def train_late(context):
        def loss(model, x):
            rank = context.collective.rank
            time.sleep(0.1 * rank)
            found = default_loss(model, x)
            waited[rank] = sync_batch_norm_rounds.current_rounds()._clock.waited_seconds
            return found

        return train(context, (8, 8), 8, loss=loss)

    run_together(Hub(2), train_late)
    assert waited[0] > 0.05


def test_a_layer_may_meet_the_others_once_in_a_pass():
    """A second time would be taken for the next round: it is refused by name."""

    def loss(model, x):
        return model[1](model[:2](x)).mean()

    with pytest.raises(UserError, match=r"model\.1: SyncBatchNorm was used twice"):
        run_together(Hub(2), lambda context: train(context, (8, 8), 8, loss=loss))


TEACHERS = {"a copy of the model": copy.deepcopy, "another one": lambda _: copy.deepcopy(INITIAL)}


@pytest.mark.parametrize("make", TEACHERS.values(), ids=TEACHERS.keys())
def test_a_layer_of_another_model_meets_nobody(make):
    """A worker without samples would not know of it, and the others wait for ever."""

    def loss(model, x, mode):
        with torch.no_grad():
            wanted = make(model).train(mode)(x)
        return (model(x) - wanted).square().mean()

    def run(mode):
        return run_together(
            Hub(2),
            lambda context: train(context, (0, 16), 16, loss=lambda *given: loss(*given, mode)),
        )

    one, other = run(mode=False)
    assert torch.equal(one[0].weight, other[0].weight)
    with pytest.raises(UserError, match=r"of another model, .* \.eval\(\)"):
        run(mode=True)


def convert(model):
    """Layers of it, after its trainer was made."""
    hetero_hvd.convert_sync_batch_norm(model)


def teach(model):
    """Another model in training mode, whatever it is for."""

    def ask(_module, given):
        copy.deepcopy(INITIAL)(*given)

    model.register_forward_pre_hook(ask)


UNKNOWN = {
    "the model's own, converted too late": (0, convert),
    "a further model's, converted too late": (1, convert),
    "a teacher's in the model's step": (0, teach),
    "a teacher's in a further model's step": (1, teach),
}


@pytest.mark.parametrize(("which", "change"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_layer_that_no_trainer_knows_of_is_refused(which, change):
    """It would normalise over this worker's samples alone, without a word."""

    def train(context):
        models = [nn.Sequential(nn.Conv1d(2, 5, 1), nn.BatchNorm1d(5)) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        trainer = Trainer(models[0], optimizers[0], DataLoader(TensorDataset(DATA), BATCH))
        trainer._state._context = context
        other = trainer.add_model("other", models[1], optimizers[1])
        change(models[which])
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.step(lambda x: default_loss(models[0], x), x)
                other.step(lambda x: default_loss(models[1], x), x)

    with pytest.raises(UserError, match=r"none of the model's layers as the trainer was given it"):
        run_together(Hub(2), train)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_of_the_input_is_kept(dtype):
    """In and out of the same type, alone; nothing else than plain batch normalisation."""
    layer = hetero_hvd.SyncBatchNorm(2).to(dtype)
    found = layer(DATA.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, batch_norm(DATA.to(dtype), None, None, training=True))


def test_torchs_own_is_refused():
    """It would wait for torch.distributed for ever."""
    model = nn.Sequential(nn.SyncBatchNorm(2))
    loader = DataLoader(TensorDataset(DATA), BATCH)
    with pytest.raises(UserError, match=r"model\.0: .* use hetero_hvd.convert_sync_batch_norm"):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
