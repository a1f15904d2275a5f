"""Trains where each rank keeps to an instruction set of its own.

Usage: capabilities.py RESULT.json JSON, the instruction set of each rank in `sets`.
"""

import os
import sys
from json import loads

from hetero_hvd.core.numerics.cpu_capability import variables

rank = int(os.environ["HOROVOD_RANK"])
os.environ.update(variables(loads(sys.argv[2])["sets"][rank]))

import torch  # noqa: E402 - its libraries read these variables
from scripted import report  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import hetero_hvd  # noqa: E402
from hetero_hvd.errors import JobError  # noqa: E402

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 10))
x, y = torch.randn(64, 64), torch.randint(10, (64,))
trainer = hetero_hvd.Trainer(
    model,
    torch.optim.AdamW(model.parameters(), lr=0.01),
    DataLoader(TensorDataset(x, y), 32),
    reproducible=True,
    grain=8,
)
found = {}
try:
    for _ in trainer.epochs(2):
        for images, labels in trainer.batches():
            trainer.step(lambda x, y: nn.functional.cross_entropy(model(x), y), images, labels)
    found["fingerprint"] = trainer.fingerprint()
except JobError as error:
    found["error"] = str(error)
report(found)
