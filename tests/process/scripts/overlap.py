"""A large reduction beside a slow rest of the backward pass, and after it: what the timings say."""

import time

import torch
from scripted import arguments, follow, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

LAYERS, WIDTH, STEPS = 6, 500_000, 12
PIECE_SECONDS = arguments()["slow_seconds"] / LAYERS


def tables_with(slow):
    """Each of the small layers, or the large one whose gradient comes first, is slow."""
    planner = follow([[1, 1]])
    small = [nn.Linear(4, 4) for _ in range(LAYERS)]
    large = nn.Linear(4, WIDTH)
    for layer in small:
        hooked = layer if slow == "rest" else large
        hooked.bias.register_hook(lambda _: time.sleep(PIECE_SECONDS))
    model = nn.Sequential(*small, large)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = hetero_hvd.Trainer(
        model, optimizer, DataLoader(TensorDataset(torch.ones(2 * STEPS, 4)), 2)
    )
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            trainer.step(lambda x: model(x).mean(), x)
    return [
        [{field: getattr(row, field) for field in row.__struct_fields__} for row in table.timings]
        for table in planner.tables
    ]


report({slow: tables_with(slow) for slow in ("rest", "large")})
