"""Trains on a stream's shards: python data_stream.py EPOCHS; says what it has seen and read.

Where STREAM is `reversed` each shard is read from its end; where it is `lost` the first connection
is, in the middle of a shard.
"""

import os
import sys

import torch
from torch.utils.data import DataLoader

import hetero_hvd
from hetero_hvd.data import StreamShards
from tests.data.streams import ShardedStream, numbered

LENGTHS = [40, 8, 24, 40, 16, 32]

lost = [100] if os.environ.get("STREAM") == "lost" else []


def read(shard):
    """The numbers of a shard."""
    for number in reversed(shard) if os.environ.get("STREAM") == "reversed" else shard:
        if number in lost:
            lost.clear()
            sys.stdout.write("a connection is lost\n")
            raise ConnectionError
        yield number


torch.manual_seed(0)
rows = StreamShards(numbered(LENGTHS, read), LENGTHS)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(rows, 16, sampler=rows.sampler(16)))
for epoch in trainer.epochs(int(sys.argv[1])):
    for x in trainer.batches():
        trainer.step(lambda x: model(x[:, None].float()).square().mean(), x)
        sys.stdout.write(f"epoch {epoch} seen {' '.join(str(int(one)) for one in x)}\n")
sys.stdout.write(f"read {ShardedStream.num_read}\n")
