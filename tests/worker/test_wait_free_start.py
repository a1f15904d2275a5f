"""Where wait-free rounds begin, and where they cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hetero_hvd import Trainer, convert_sync_batch_norm
from hetero_hvd.errors import UserError

SIZE, BATCH, CHUNK = 150, 32, 4
EYE = TensorDataset(torch.eye(SIZE, dtype=torch.float64))


def resume(position, **options):
    """A trainer that stands somewhere in an epoch."""
    model = nn.Linear(SIZE, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    loader = DataLoader(EYE, BATCH)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), loader, **options)
    for name, value in position.items():
        setattr(trainer._state.position, name, value)
    for _ in trainer.epochs(1):
        for (mine,) in trainer.batches():
            trainer.step(lambda rows: model(rows).mean(), mine)
    return model.weight[0]


HALF = {"chunks": {"size": CHUNK, "frontier": 20, "returned": [3, 7]}, "step_in_epoch": 2}
ROUNDS = {"wait_free": True, "micro_batch_size": CHUNK}


def test_an_epoch_goes_on_where_it_was():
    """From chunks that are done, or from whole steps; what is done is not done again."""
    moved = resume(HALF, **ROUNDS) != 0
    assert moved.nonzero().flatten().tolist() == [*range(12, 16), *range(28, 32), *range(80, SIZE)]
    moved = resume({"step_in_epoch": 2}, **ROUNDS) != 0
    assert moved.nonzero().flatten().tolist() == [*range(2 * BATCH, SIZE)]


class Stream(IterableDataset):
    """Never read."""

    def __iter__(self):
        """Nothing."""
        return iter(())


def sync_norm():
    """A model that asks the other workers in its forward pass."""
    return convert_sync_batch_norm(nn.Sequential(nn.BatchNorm1d(1)))


def leave_an_epoch_early():
    """After its first chunk; the others may have taken none, or many."""
    model = nn.Linear(SIZE, 1).double()
    trainer = of(model, EYE)
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches():
            trainer.step(lambda x: model(x).mean(), batch)
            break


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: resume(HALF, wait_free=True, micro_batch_size=8),
            "resume with micro_batch_size=4",
        ),
        (
            lambda: resume({"step_in_epoch": 1}, wait_free=True, micro_batch_size=5),
            "between chunks",
        ),
        (lambda: resume(HALF), "begun with wait_free"),
        (leave_an_epoch_early, "left before its end, where workers are at different"),
        (lambda: resume({}, staleness_warmup_steps="5"), "must be a whole number"),
        (lambda: resume({}, wait_free_lr="cubic"), "must be auto, linear, sqrt or none"),
        (lambda: resume({}, reproducible=True, wait_free=True), "wait_free: must be off"),
        (lambda: of(nn.Linear(1, 1), Stream()), "IterableDataset"),
        (lambda: of(sync_norm(), EYE), "normalise over all workers"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    """One line that says what to do instead."""
    with pytest.raises(UserError, match=words):
        call()


def of(model, dataset):
    """A trainer in rounds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Trainer(model, optimizer, DataLoader(dataset, BATCH), wait_free=True)
