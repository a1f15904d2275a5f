"""Scripts that take their steps by micro_batches, backward and apply."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError

DATA = TensorDataset(torch.randn(12, 3))


def loop(*calls, **options):
    """Steps by the lower level, as one might write them."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(model, optimizer, DataLoader(DATA, 4), **options)
    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            pieces = trainer.micro_batches(*batch)
            for call in calls:
                if call == "take":
                    loss = model(next(pieces)[0]).mean()
                elif call == "backward":
                    trainer.backward(loss if "take" in calls else model(batch[0]).mean())
                elif call == "own backward":
                    loss.backward()
                elif call == "step":
                    trainer.step(lambda x: model(x).mean(), *batch)
                else:
                    trainer.apply()


ORDERS = {
    "no micro-batch": (("backward", "apply"), "trainer.backward was called without a micro-batch"),
    "two losses": (
        ("take", "backward", "backward"),
        "called twice for one micro-batch: add up",
    ),
    "apply alone": (
        ("apply",),
        "apply was called before trainer.backward: give it the loss",
    ),
    "torch's own": (("take", "own backward", "apply"), "loss.backward() reaches no other"),
    "step in its midst": (("take", "backward", "step"), "end that step with trainer.apply()"),
    "apply twice": (("take", "backward", "apply", "apply"), "no step is under way"),
}


@pytest.mark.parametrize(("calls", "message"), ORDERS.values(), ids=ORDERS.keys())
def test_the_lower_level_is_called_in_order(calls, message):
    """Else a step would be that of no batch, and nobody would know."""
    with pytest.raises(UserError) as caught:
        loop(*calls)
    assert message in str(caught.value)


def test_the_lower_level_takes_every_step():
    """In its order it is what `step` does."""
    loop("take", "backward", "apply")
    loop("take", "backward", "take", "backward", "apply", micro_batch_size=2)


@pytest.mark.parametrize(
    "options",
    [{"micro_batch_size": 2}, {"reproducible": True, "grain": 2}, {"micro_batch_size": 1}],
    ids=["micro-batches", "grains", "single samples"],
)
def test_all_micro_batches_are_taken(options):
    """The samples of the others would be lost, and these count as all."""
    with pytest.raises(UserError, match=r"apply was called after 1 of the micro-batches"):
        loop("take", "backward", "apply", **options)
