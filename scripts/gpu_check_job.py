"""The training of `scripts/gpu-check`: `... FOLDER`, in which job.json names a fault and its step.

All numbers are float64, so that a GPU and a CPU differ by the order of sums only.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

WIDTH, BATCH, STEPS_PER_EPOCH, EPOCHS = 4096, 512, 4, 3
ROOM_RATIO = 1.5
"""Tensors of the model's width that there is still room for; a forward pass makes two."""


def squeeze(num_samples: int, *, is_cpu: bool) -> None:
    """Leave room for less than a forward pass of so many samples."""
    room_bytes = int(ROOM_RATIO * num_samples * WIDTH * 8)
    if is_cpu:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + room_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    else:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        used = torch.cuda.memory_reserved(0)
        torch.cuda.set_per_process_memory_fraction((used + room_bytes) / total, 0)


def main() -> None:
    """Train; the GPU's worker meets the fault, and each leaves what it has."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    name = os.environ.get("HETERO_HVD_WORKER", "alone")
    fault = job.get("fault") if name == "gpu:0" else None
    killed = folder / "killed"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4, bias=False)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    size = BATCH * STEPS_PER_EPOCH
    data = TensorDataset(torch.randn(size, 8).double(), torch.randn(size, 4).double())
    trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    calls: list[tuple[int, int]] = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append((trainer.applied_steps, len(x)))
        return mse_loss(model(x), y)

    for _ in trainer.epochs(EPOCHS):
        for x, y in trainer.batches():
            if trainer.applied_steps == job.get("step") and fault == "oom":
                squeeze(len(x), is_cpu=job["is_rehearsal"])
                fault = None
            if trainer.applied_steps == job.get("step") and fault == "kill" and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            trainer.step(loss, x, y)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    left = {
        "device": str(hetero_hvd.device()),
        "calls": calls,
        "parameters": nn.utils.parameters_to_vector(model.parameters()).tolist(),
    }
    (folder / f"left-{name}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
