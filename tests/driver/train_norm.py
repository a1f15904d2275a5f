"""A small training with SyncBatchNorm; one worker runs out of memory once, in the second layer.

Usage: train_norm.py WORKER STEP
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

victim, step = sys.argv[1], int(sys.argv[2])
is_victim = os.environ["HETERO_HVD_WORKER"] == victim
fired = []
torch.manual_seed(0)
model = hetero_hvd.convert_sync_batch_norm(
    nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.BatchNorm1d(8))
)
data = TensorDataset(torch.randn(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, 16))


def loss(x):
    """Both layers meet the other workers; memory ends between them."""
    hidden = model[:3](x)
    if is_victim and trainer.applied_steps == step and not fired:
        fired.append(len(x))
        torch.empty(2**50)
    return model[3](hidden).pow(3).mean()


for _ in trainer.epochs(3):
    for (x,) in trainer.batches():
        trainer.step(loss, x)
assert bool(fired) == is_victim
sys.stdout.write("the script is done\n")
