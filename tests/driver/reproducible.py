"""A small training with all that the reproducible mode has to seed, draw or add up.

Usage: reproducible.py EPOCHS [WORKERS]; with so many workers its steps are slow, so that the
training is not over before another one joins.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import hetero_hvd


class Noisy(Dataset):
    """Another noise at each reading."""

    def __init__(self):
        self.x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return x + 0.1 * torch.randn(8), x.sum()


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = WeightedRandomSampler([1.0 + index % 5 for index in range(512)], 512)
loader = DataLoader(Noisy(), batch_size=64, sampler=sampler)
trainer = hetero_hvd.Trainer(model, optimizer, loader, reproducible=True, grain=8)
for _ in trainer.epochs(int(sys.argv[1])):
    for x, y in trainer.batches():
        time.sleep(0.3 if sys.argv[2:] == [str(trainer.num_workers)] else 0.02)
        trainer.step(lambda x, y: nn.functional.mse_loss(model(x)[:, 0], y), x, y)
