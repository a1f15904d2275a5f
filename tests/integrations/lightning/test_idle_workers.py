"""A worker that has had no part of a batch yet calls the hooks with one that has no samples."""

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from hetero_hvd.integrations.lightning import HeteroStrategy
from hetero_hvd.integrations.lightning.fit import Fit
from hetero_hvd.integrations.lightning.loader import empty_batch

pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset):
    """Pairs, each drawn with a random number of every kind."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        drawn = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002, S311
        return torch.full((3,), drawn), torch.tensor(float(index))


class Batches(Rows):
    """Whole batches."""

    def __getitem__(self, index):
        return {"x": torch.full((4, 3), float(index)), "y": torch.zeros(4)}


class ByName(Rows):
    """Places are names."""

    def __getitem__(self, index):
        return {"a": torch.zeros(3)}[index]


class Empty(Rows):
    """No sample at all."""

    def __len__(self):
        return 0


class Stream(IterableDataset):
    """Each sample can be read once."""

    def __iter__(self):
        raise AssertionError("a stream is not read twice")


def as_dict(rows):
    """Another form of batch."""
    first, second = zip(*rows, strict=True)
    return {"x": torch.stack(first), "more": (torch.stack(second), "text")}


def shapes(batch):
    """Of all tensors, in their containers."""
    if isinstance(batch, torch.Tensor):
        return tuple(batch.shape)
    if isinstance(batch, dict):
        return {name: shapes(item) for name, item in batch.items()}
    return [shapes(item) for item in batch] if isinstance(batch, tuple | list) else batch


LOADERS = {
    "pairs": (lambda: DataLoader(Rows(), 4), [(0, 3), (0,)]),
    "shuffled": (lambda: DataLoader(Rows(), 4, shuffle=True), [(0, 3), (0,)]),
    "read in a process": (lambda: DataLoader(Rows(), 4, num_workers=1), [(0, 3), (0,)]),
    "a collate_fn": (
        lambda: DataLoader(Rows(), 4, collate_fn=as_dict),
        {"x": (0, 3), "more": [(0,), "text"]},
    ),
    "a batch sampler": (
        lambda: DataLoader(
            Rows(), batch_sampler=BatchSampler(SequentialSampler(range(8)), 4, drop_last=True)
        ),
        [(0, 3), (0,)],
    ),
    "whole batches": (lambda: DataLoader(Batches(), None), {"x": (0, 3), "y": (0,)}),
    "places by name": (lambda: DataLoader(ByName(), 4, sampler=["a"]), None),
    "no sample": (lambda: DataLoader(Empty(), 4, sampler=[]), None),
    "a stream": (lambda: DataLoader(Stream(), 4), None),
}


@pytest.mark.parametrize(("make", "expected"), LOADERS.values(), ids=LOADERS.keys())
def test_a_batch_without_samples_has_the_form_of_the_loader_s(make, expected):
    """And the random numbers that come next are those that would have come."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    drawn = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002, S311
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    assert shapes(empty_batch(make())) == expected
    assert drawn == (random.random(), np.random.rand(), float(torch.rand(())))  # noqa: NPY002, S311


class Module(pl.LightningModule):
    """A regression that looks into what its hooks get, as scripts do."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def training_step(self, batch):
        """The mean square."""
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        """One."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_batch_start(self, batch, _):
        """Before a step."""
        self.seen.append(("start", len(batch[0]), batch[0].shape[1:]))

    def on_train_batch_end(self, outputs, batch, _):
        """After it."""
        assert outputs["loss"].isfinite()
        self.seen.append(("end", len(batch[1]), batch[0].shape[1:]))


class Noting(pl.Callback):
    """A callback that does so."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, _trainer, _module, batch, _):
        """Before a step."""
        self.seen.append(("start", len(batch[0]), batch[0].shape[1:]))

    def on_train_batch_end(self, _trainer, _module, _outputs, batch, _):
        """After it."""
        self.seen.append(("end", len(batch[1]), batch[0].shape[1:]))


@pytest.mark.parametrize("num_idle", [0, 1, 2])
def test_the_hooks_of_a_worker_without_a_part_get_a_batch(monkeypatch, num_idle):
    """Of its first steps, before it has ever had a part, and of those after that."""
    module, noting = Module(), Noting()
    begin_step, begun = Fit._begin_step, []

    def begin(fit, batch):
        """The first steps are applied without a part of this worker."""
        if len(batch[0]) and len(begun) < num_idle:
            begun.append(batch)
        else:
            begin_step(fit, batch)

    monkeypatch.setattr(Fit, "_begin_step", begin)
    trainer = pl.Trainer(
        strategy=HeteroStrategy(), accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, max_epochs=1, callbacks=[noting],
    )  # fmt: skip
    trainer.fit(module, DataLoader(Rows(), 4))
    sizes = [0] * num_idle + [4] * (2 - num_idle)
    expected = [(when, size, (3,)) for size in sizes for when in ("start", "end")]
    assert module.seen == noting.seen == expected
