"""What stands for a reader's script: a small model that trains for a second, whatever its flags."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
inputs = torch.randn(512, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(inputs, inputs @ torch.randn(8, 1))
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, batch_size=64))
for _ in trainer.epochs(20):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: torch.nn.functional.mse_loss(model(x), y), x, y)
