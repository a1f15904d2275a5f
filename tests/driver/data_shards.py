"""Trains on shards: python data_shards.py URL EPOCHS; says which samples it has seen."""

import sys

import torch
from torch.utils.data import DataLoader

import hetero_hvd
from hetero_hvd.data import BlockShuffle, TarShards

torch.manual_seed(0)
shards = TarShards(sys.argv[1], decode=lambda sample: torch.tensor([float(sample["cls"])]))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(shards, batch_size=8, sampler=BlockShuffle(shards, 4), num_workers=1)
trainer = hetero_hvd.Trainer(model, optimizer, loader)
for epoch in trainer.epochs(int(sys.argv[2])):
    for x in trainer.batches():
        trainer.step(lambda x: model(x).square().mean(), x)
        sys.stdout.write(f"epoch {epoch} seen {' '.join(str(int(one)) for one in x)}\n")
