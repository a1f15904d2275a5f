"""A script that leaves its epochs early, while steps are under way, and a fault comes just then."""

from __future__ import annotations

import copy

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError

EPOCHS, STEPS, TAKEN, BATCH, BOUND = 3, 6, 4, 4, 2
"""Of six steps of an epoch four are taken."""

INITIAL = nn.Linear(3, 1)
X = torch.linspace(-1, 1, STEPS * BATCH)[:, None].expand(-1, 3)


def train(context):
    """Leave each epoch after some steps; what is to be equal on all workers, and the epochs."""
    model = copy.deepcopy(INITIAL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    late = {"staleness_bound": BOUND, "staleness_warmup_steps": 0}
    loader = DataLoader(TensorDataset(X), BATCH)
    trainer = Trainer(model, optimizer, loader, scheduler=scheduler, **late)
    trainer._state._context = context
    epochs = []
    for epoch in trainer.epochs(EPOCHS):
        epochs.append(epoch)
        for (mine,) in trainer.batches():
            trainer.step(lambda x: model(x).square().mean(), mine)
            if trainer.applied_steps % TAKEN == TAKEN - BOUND:  # the others are under way
                break
    parameters = nn.utils.parameters_to_vector(model.parameters()).tolist()
    return (trainer.applied_steps, optimizer.param_groups[0]["lr"], parameters), epochs


FAULTS = [
    (rank, operation, turn, when)
    for rank in (0, 2)
    for operation, turn in (("totals.2", 1), ("totals.0", 2), ("totals.2", 3), ("totals.0", 6))
    for when in ("before", "after")
]
"""While the steps that are under way at the end of the first or the last epoch are applied."""


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=str)
def test_all_are_in_the_same_epoch_afterwards(fault):
    """Some have left the epoch already, others have not: none goes through one that others miss."""
    hub = Hub(3, [fault] if fault else [])
    found = run_together(hub, train)
    assert hub.fired == hub.faults
    results = [result for result, _ in found]
    assert results == results[:1] * 3
    applied_steps, lr, _ = results[0]
    assert applied_steps >= EPOCHS * TAKEN
    assert lr == pytest.approx(0.1 * 0.5**EPOCHS)
    for _, epochs in found:
        assert set(epochs) <= set(range(EPOCHS))


def test_who_leaves_an_epoch_after_another_step_is_told():
    """Steps of two epochs are never reduced together."""

    def train_and_count(context):
        model = copy.deepcopy(INITIAL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X), BATCH))
        trainer._state._context = context
        for _ in trainer.epochs(EPOCHS):
            for number, (mine,) in enumerate(trainer.batches()):
                trainer.step(lambda x: model(x).square().mean(), mine)
                if number == 1 + context.collective.rank:  # as if this one had joined later
                    break

    with pytest.raises(
        JobError, match=r"rank \d takes step \d of epoch \d, .*leave an epoch early"
    ):
        run_together(Hub(2), train_and_count)
