"""Trains with one kind of sampler after the other: what each step used, on this worker.

Usage: samplers.py RESULT.json JSON, without arguments.
"""

import torch
from scripted import follow, report
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import hetero_hvd

SIZE, BATCH = 44, 16
DATA = [float(number) for number in range(SIZE)]
WEIGHTS = [number % 4 for number in range(SIZE)]
PLANS = {1: [[16]], 3: [[5, 3, 8], [0, 10, 6], [16, 0, 0], [2, 2, 12]]}


class Halves(Sampler):
    """A random half of the samples, from torch's global generator."""

    def __len__(self):
        return SIZE // 2

    def __iter__(self):
        return iter(torch.randperm(SIZE)[: len(self)])


class ByLength(Sampler):
    """Batches of several sizes, in random order."""

    def __len__(self):
        return 5

    def __iter__(self):
        ends = torch.tensor([0, 16, 20, 29, 33, 44])
        return iter([range(ends[k], ends[k + 1]) for k in torch.randperm(5)])


LOADERS = {
    "weighted": {"batch_size": BATCH, "sampler": WeightedRandomSampler(WEIGHTS, 40)},
    "replaced": {"batch_size": BATCH, "sampler": RandomSampler(DATA, replacement=True)},
    "more": {"batch_size": BATCH, "sampler": RandomSampler(DATA, num_samples=70)},
    "subset": {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(5, 40))},
    "own": {"batch_size": BATCH, "sampler": Halves()},
    "by length": {"batch_sampler": ByLength()},
}


def train(loader, options):
    """Step to this worker's samples and their place in it, and the fingerprint."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(DATA, **loader), **options)
    taken = []
    for _ in trainer.epochs(2):
        for x in trainer.batches():
            place = trainer.applied_steps, trainer._last.first_sample
            taken.append([*place, x.tolist()])
            trainer.step(lambda x: model(x.float()[:, None]).square().mean(), x)
    return {"taken": taken, "fingerprint": trainer.fingerprint()}


num_workers = hetero_hvd.init().collective.size
found = {}
for name, loader in LOADERS.items():
    for mode in ("synchronous", "reproducible"):
        follow(PLANS[num_workers])
        options = {"reproducible": True, "grain": 2} if mode == "reproducible" else {}
        found[f"{name}, {mode}"] = train(loader, options)
report(found)
