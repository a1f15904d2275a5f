"""Three epochs, or as many as its first argument says."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
x = torch.randn(64, 2)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, 16, shuffle=True))


def loss(x, y):
    """Of a linear model."""
    return torch.nn.functional.mse_loss(model(x), y)


for _ in trainer.epochs(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    for x, y in trainer.batches():
        trainer.step(loss, x, y)
    trainer.evaluate(lambda x, y: {"loss": loss(x, y)}, DataLoader(data, 16))
