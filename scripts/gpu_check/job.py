"""The training of `scripts/gpu-check`: `... FOLDER`, in which job.json says how; see `JOB`.

With float64, a GPU and a CPU differ by the order of sums only.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

JOB = {
    "device": "cpu",  # kind of the card
    "width": 4096,
    "depth": 0,  # further layers of that width
    "batch": 512,
    "steps_per_epoch": 4,
    "epochs": 3,
    "precision": "float64",  # float32, bf16, fp16
    "optimizer": "sgd",  # adamw
    "compile": "",  # a mode of torch.compile
    "queue": 0,  # matrix products before each forward pass, so that the device lags behind
    "fault": "",  # oom, kill
    "step": 4,  # of the fault
    "guilty": "card:0",  # who meets it
    "loss_scale": 65536.0,  # at first, with fp16
    "options": {},  # of the trainer
    "keeps": True,  # whether parameters are left
}
ROOM_RATIO = 1.5
"""Tensors of the model's width that there is still room for; a forward pass makes two."""

MAX_KEPT = 200_000
WAIT_SECONDS = 0.5
"""Of each step while a worker that was killed is on its way back."""


class Graphs:
    """How many CUDA graphs are recorded, and how often one is launched."""

    def __init__(self) -> None:
        self.counts = {"recorded": 0, "launched": 0}
        if torch.cuda.is_available():
            for name, what in (("capture_end", "recorded"), ("replay", "launched")):
                self._count(name, what)

    def _count(self, name: str, what: str) -> None:
        known = getattr(torch.cuda.CUDAGraph, name)

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.counts[what] += 1
            known(graph)

        setattr(torch.cuda.CUDAGraph, name, counted)


def squeeze(num_samples: int, width: int, where: torch.device) -> None:
    """Leave room for less than a forward pass of so many samples."""
    room_bytes = int(ROOM_RATIO * num_samples * width * 8)
    if where.type == "cpu":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + room_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        return
    module = torch.get_device_module(where)
    module.empty_cache()
    total = module.get_device_properties(where).total_memory
    used = module.memory_reserved(where)
    module.set_per_process_memory_fraction((used + room_bytes) / total, where)


class Training:
    """One worker's training.

    Args:
        job: See `JOB`.
        folder: Where marks and results go.
        name: Of this worker.
    """

    def __init__(self, job: dict[str, Any], folder: Path, name: str) -> None:
        self.job = job
        self.folder = folder
        self.is_guilty = name == job["guilty"]
        self.device = hetero_hvd.device()
        torch.manual_seed(0)
        width, precision = job["width"], job["precision"]
        layers: list[nn.Module] = [nn.Linear(8, width), nn.ReLU()]
        for _ in range(job["depth"]):
            layers += [nn.Linear(width, width), nn.ReLU()]
        dtype = torch.float64 if precision == "float64" else torch.float32
        self.model = nn.Sequential(*layers, nn.Linear(width, 4, bias=False)).to(dtype)
        self.forward = self.model
        optimizers: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "sgd": lambda: torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9),
            "adamw": lambda: torch.optim.AdamW(self.model.parameters(), lr=1e-3),
        }
        optimizer = optimizers[job["optimizer"]]()
        size = job["batch"] * job["steps_per_epoch"]
        x = torch.randn(size, 8).to(dtype)
        data = TensorDataset(x, torch.tanh(x[:, :4]) + 1.0)
        self.scaler = None
        if precision == "fp16":
            scale = job["loss_scale"]
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=scale)
        self.trainer = hetero_hvd.Trainer(
            self.model,
            optimizer,
            DataLoader(data, job["batch"], shuffle=True),
            scaler=self.scaler,
            **job["options"],
        )
        if job["compile"]:
            self.forward = torch.compile(self.model, mode=job["compile"])  # type: ignore[assignment]
        self.work = torch.ones(job["queue"] and 4096, 4096, device=self.device)
        self.graphs = Graphs()
        self.left: dict[str, Any] = {"parts": [], "calls": [], "losses": [], "step_seconds": []}

    def precision(self) -> AbstractContextManager[object]:
        """In which the forward pass is."""
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.job["precision"])
        return torch.autocast(self.device.type, dtype=low) if low else nullcontext()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean loss of a micro-batch."""
        self.left["calls"].append((self.trainer.applied_steps, len(x)))
        for _ in range(self.job["queue"] if self.device.type != "cpu" else 0):
            torch.mm(self.work, self.work.T)
        with self.precision():
            return mse_loss(self.forward(x).to(y.dtype), y)

    def meet(self, num_samples: int) -> None:
        """The fault, if it is due here."""
        fault, is_due = self.job["fault"], self.trainer.applied_steps == self.job["step"]
        if fault == "kill" and (self.folder / "met").exists():
            self.await_return()
        if not fault or not is_due or not self.is_guilty or (self.folder / "met").exists():
            return
        (self.folder / "met").touch()
        if fault == "oom":
            squeeze(num_samples, self.job["width"], self.device)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def await_return(self) -> None:
        """Take the time that the killed worker needs to come back; it says when it has."""
        back = self.folder / "back"
        if self.is_guilty:
            back.touch()
        elif not back.exists():
            time.sleep(WAIT_SECONDS)

    def run(self) -> None:
        """All steps."""
        for _ in self.trainer.epochs(self.job["epochs"]):
            began = time.perf_counter()
            for x, y in self.trainer.batches():
                self.meet(len(x))
                self.left["parts"].append(len(x))
                self.left["losses"].append(self.trainer.step(self.loss, x, y))
                now = time.perf_counter()
                self.left["step_seconds"].append(now - began)
                began = now

    def result(self) -> dict[str, Any]:
        """What is left of it."""
        vector = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        kept = vector[:MAX_KEPT].tolist() if self.job["keeps"] else []
        scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        return self.left | {
            "device": str(self.device),
            "parameters": kept,
            "num_parameters": len(vector),
            "num_steps": self.trainer.applied_steps,
            "scale": scale,
            "graphs": self.graphs.counts,
        }


def main() -> None:
    """Train; the card's worker meets the fault, and each leaves what it has."""
    folder = Path(sys.argv[1])
    job = JOB | json.loads((folder / "job.json").read_text())
    name = os.environ.get("HETERO_HVD_WORKER", "alone")
    training = Training(job, folder, name)
    training.run()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    (folder / f"left-{name}.json").write_text(json.dumps(training.result()))


if __name__ == "__main__":
    main()
