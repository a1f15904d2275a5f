"""One worker does something else than the other in mid-training."""

import sys
import time
from pathlib import Path

import torch
from scripted import arguments, follow, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.worker.session.worker_context import init

RANK = init().collective.rank
SHARES = {"in_the_loss": [4, 4], "in_the_loss_of_an_idle_peer": [0, 8], "other_parameters": [4, 4]}
KIND = arguments()["kind"]


def main():
    """Main."""
    follow([SHARES[KIND]])
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    loader = DataLoader(TensorDataset(torch.randn(80, 64)), 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = hetero_hvd.Trainer(model, optimizer, loader, bucket_bytes=10_000)

    def loss(x):
        if RANK == 1 and trainer.applied_steps == 3 and KIND.startswith("in_the_loss"):
            raise ArithmeticError("the user's mistake")
        return model(x).mean()

    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            if trainer.applied_steps == 3 and KIND == "other_parameters":
                model[RANK].requires_grad_(False)
                model[3].weight.requires_grad_(RANK == 0)
            trainer.step(loss, x)


began = time.monotonic()
try:
    main()
except BaseException as error:
    report(
        {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - began}
    )
    raise
Path(sys.argv[1]).unlink(missing_ok=True)
