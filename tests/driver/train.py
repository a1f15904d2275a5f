"""A small training for the tests: real workers, real Horovod, steps of about 20 ms.

Usage: train.py EPOCHS [fail-before|bad-input|session|until-told]; told is it by a file `end`.
"""

import contextlib
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

epochs, fault = int(sys.argv[1]), "".join(sys.argv[2:])
if fault == "fail-before":
    raise ImportError("no such library")
torch.manual_seed(0)
inputs = torch.randn(512, 8)
targets = inputs @ torch.randn(8, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trainer = hetero_hvd.Trainer(
    model, optimizer, DataLoader(TensorDataset(inputs, targets), batch_size=64)
)
is_recorded = fault == "session"
with hetero_hvd.phase("fit", session=True) if is_recorded else contextlib.nullcontext():
    for epoch in trainer.epochs(epochs):
        if epoch == 1 and fault == "bad-input":
            raise hetero_hvd.UserError("the dataset is empty")
        if fault == "until-told" and Path("end").exists():
            break
        for x, y in trainer.batches():
            with hetero_hvd.phase("pause"):
                time.sleep(0.02)
            trainer.step(lambda x, y: torch.nn.functional.mse_loss(model(x), y), x, y)
sys.stdout.write("the script is done\n")
