"""A training that evaluates and logs: what is recorded of it is compared with what it prints.

Usage: train_logging.py EPOCHS
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
inputs = torch.randn(512, 8)
held_out = TensorDataset(inputs[:90], (inputs[:90, 0] > 0).long())
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, batch_size=64))


def metrics(x, y):
    """Of a batch."""
    return {"accuracy": (model(x).argmax(1) == y).double().mean()}


for _ in trainer.epochs(int(sys.argv[1])):
    for x, y in trainer.batches():
        time.sleep(0.02)
        trainer.step(lambda x, y: torch.nn.functional.cross_entropy(model(x), y), x, y)
        trainer.log(weight=model.weight.norm(), step=trainer.applied_steps)
    accuracy = trainer.evaluate(metrics, DataLoader(held_out, batch_size=32))["accuracy"]
    if trainer.is_leader:
        sys.stdout.write(f"held-out accuracy {accuracy!r}\n")
        sys.stdout.flush()
