"""A training whose samples take about a MiB of memory each: for hosts that have little.

Usage: train_wide.py STEPS BATCH
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

steps, batch = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH = 2**16
model = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
data = TensorDataset(torch.randn(batch, 2), torch.randn(batch, 1))
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, batch))
for _ in trainer.epochs(steps):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: nn.functional.mse_loss(model(x), y), x, y)
