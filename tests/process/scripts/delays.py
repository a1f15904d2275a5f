"""Delays of known size in one phase of one worker's steps, and what the timings say."""

import time

import torch
from scripted import arguments, follow, report
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hetero_hvd
from hetero_hvd.worker.session.worker_context import init

BATCH, STEPS = 4, 8
DELAY_SECONDS = arguments()["delay_seconds"]
RANK = init().collective.rank


def sleep(phase, here):
    """The delay, on rank 1 only and in one phase only."""
    if RANK == 1 and here == phase:
        time.sleep(DELAY_SECONDS)


class SlowDataset(Dataset):
    """Its samples take their time."""

    def __init__(self, phase):
        self.phase = phase

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        return torch.full((3,), float(index))

    def __getitems__(self, indices):
        sleep(self.phase, "data_wait")
        return [self[index] for index in indices]


class SlowToMove:
    """A batch of a type of its own."""

    def __init__(self, samples, phase):
        self.x = torch.stack(samples)
        self.phase = phase

    def to(self, device):
        """Move it."""
        sleep(self.phase, "transfer")
        self.x = self.x.to(device)
        return self


class SlowOptimizer(torch.optim.SGD):
    """Its step takes its time."""

    phase = ""

    def step(self, closure=None):
        """As slow as asked for."""
        sleep(self.phase, "optimizer")
        return super().step(closure)


def tables_with(phase):
    """Tables with."""
    planner = follow([[2, 2]])
    model = nn.Linear(3, 1)
    model.weight.register_hook(lambda _: sleep(phase, "backward"))
    optimizer = SlowOptimizer(model.parameters(), lr=0.0)
    optimizer.phase = phase
    loader = DataLoader(SlowDataset(phase), BATCH, collate_fn=lambda s: SlowToMove(s, phase))
    trainer = hetero_hvd.Trainer(model, optimizer, loader)

    def loss(batch):
        sleep(phase, "forward")
        return model(batch.x).mean()

    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            sleep(phase, "other")
            trainer.step(loss, batch)
    return [
        [{field: getattr(row, field) for field in row.__struct_fields__} for row in table.timings]
        for table in planner.tables
    ]


report({phase: tables_with(phase) for phase in arguments()["phases"]})
