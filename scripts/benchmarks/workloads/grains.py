"""Trains the digits CNN in the reproducible mode and without: `… FOLDER` with its job.json."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

SIZE = 1437


def new_model(seed: int = 0) -> nn.Module:
    """A small network for the digits."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def _step_seconds(options: dict[str, Any], batch_size: int) -> float:
    """Median over two epochs, the first step left out; of this worker."""
    torch.use_deterministic_algorithms(False)  # the mode switches them on
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE, 1, 8, 8, generator=generator)
    y = torch.randint(10, (SIZE,), generator=generator)
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    loader = DataLoader(TensorDataset(x, y), batch_size, shuffle=True, drop_last=True)
    trainer = hetero_hvd.Trainer(model, optimizer, loader, **options)
    seconds = []
    for _ in trainer.epochs(2):
        began = time.perf_counter()
        for images, labels in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), images, labels)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    return median(seconds[1:])


def main() -> None:
    """Train all variants in turn."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(job["num_rounds"]):
        for name, options in job["variants"].items():
            found[name].append(_step_seconds(options, job["batch_size"]))
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
