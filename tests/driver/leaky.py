"""A small training that ends in an error full of secrets. What it prints itself is its own."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, batch_size=8))
for _ in trainer.epochs(2):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: torch.nn.functional.mse_loss(model(x), y), x, y)
sys.stdout.write(f"the script prints {os.environ['HF_TOKEN']}\n")
sys.stdout.flush()
while not os.path.exists("looked"):  # noqa: PTH110 - until the test has looked
    time.sleep(0.01)
raise OSError(f"no answer of redis://me:{sys.argv[2]}@host with {os.environ['HF_TOKEN']}")
