"""A training in which one worker's address space becomes too small: `… FOLDER` with its job.json.

Each worker leaves NAME.json: what went through its model in each step, and what came of it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

WIDTH, BATCH, STEPS_PER_EPOCH, EPOCHS = 8192, 600, 4, 3
ROOM_RATIO = 1.5
"""Tensors of the model's width that the victim still has room for; a forward pass makes two."""


def main() -> None:
    """Train; the victim, if there is one, loses its room before the step that the job names."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    name = os.environ["HETERO_HVD_WORKER"]
    found = _train(job if job["victim"] == name else {"step": -1})
    parameters = found.pop("parameters")
    np.save(folder / f"{name}.npy", parameters)
    (folder / f"{name}.json").write_text(json.dumps(found))


def _train(job: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    size = BATCH * STEPS_PER_EPOCH
    data = TensorDataset(torch.randn(size, 8), torch.randn(size, 4))
    trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    calls: list[tuple[int, int]] = []
    losses: list[float] = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append((trainer.applied_steps, len(x)))
        found: torch.Tensor = mse_loss(model(x), y)
        return found

    for _ in trainer.epochs(EPOCHS):
        for x, y in trainer.batches():
            if trainer.applied_steps == job["step"]:
                _squeeze(int(ROOM_RATIO * len(x) * WIDTH * 4))
            losses.append(trainer.step(loss, x, y))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # what follows is the harness's own
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    return {"calls": calls, "losses": losses, "parameters": parameters}


def _squeeze(room_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + room_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
