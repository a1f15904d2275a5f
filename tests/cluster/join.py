"""The smallest training that says when a worker takes part; it goes on until it is ended."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
loader = DataLoader(TensorDataset(torch.zeros(256, 2)), batch_size=16)
trainer = hetero_hvd.Trainer(model, optimizer, loader)
takes_part = False
for _ in trainer.epochs(10_000):
    for (x,) in trainer.batches():
        time.sleep(0.02)
        trainer.step(lambda x: model(x).square().mean(), x)
        if not takes_part:
            takes_part = True
            sys.stdout.write(f"takes part since {time.monotonic()}\n")
