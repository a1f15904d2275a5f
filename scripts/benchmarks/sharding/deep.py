"""A model whose size is chosen by the layer, and its training with or without parts.

Usage: `python -m benchmarks.sharding.deep FOLDER`, of which each rank reads `job.json` and into
which it writes `rank-N.json`.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from benchmarks.sharding.jobs import DeepJob, DeepResult
from hetero_hvd.worker.comm.horovod import Handle
from hetero_hvd.worker.comm.operation_log import OperationLog
from hetero_hvd.worker.session.worker_context import init


class Deep(nn.Module):
    """Layers of one width, each with a way around it.

    Args:
        width: Of each.
        depth: How many.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class MasterAdamW(torch.optim.Optimizer):
    """AdamW whose state holds the parameters in float32, too; they themselves may be bfloat16."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float = 1e-3) -> None:
        options = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of each parameter with a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return None if closure is None else closure()

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["master"] = parameter.detach().float()
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        state["step"] += 1
        assert parameter.grad is not None  # noqa: S101 - asked above
        gradient = parameter.grad.float()
        first, second = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        lr, step, master = group["lr"], state["step"], state["master"]
        scale = (1 - second**step) ** 0.5
        divisor = state["exp_avg_sq"].sqrt().div_(scale).add_(group["eps"])
        master.mul_(1 - lr * group["weight_decay"])
        master.addcdiv_(state["exp_avg"], divisor, value=-lr / (1 - first**step))
        parameter.copy_(master)


class CountedOperations(OperationLog):
    """Counts what passes the door to Horovod, too.

    Args:
        is_done: See `OperationLog`.

    Attributes:
        given: Kind of operation to the bytes that this worker gave to it.
    """

    def __init__(self, is_done: Callable[[Handle], bool]) -> None:
        super().__init__(is_done)
        self.given: Counter[str] = Counter()

    def launched(self, handle: Handle, op: str, backend: str, num_bytes: int) -> None:
        """See `OperationLog`."""
        super().launched(handle, op, backend, num_bytes)
        self.given[op] += num_bytes


def sent_bytes(given: Counter[str], num_workers: int) -> float:
    """What all workers together send for what one of them gave, on average, if rings do it.

    A ring sends each part of a sum around twice, less once, and each part of an allgather around
    once, less its own place (Patarasuk and Yuan, 2009).
    """
    others = num_workers - 1
    sums = 2 * others / num_workers * given["allreduce"]
    return sums + others * given["allgather"] + given["alltoall"]


def own_bytes() -> int:
    """Of this process's memory, what no file stands behind."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def samples_of(job: DeepJob) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one step, made up; the same for whoever trains."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, job.dtype)
    x, y = (torch.randn(job.batch, job.width, generator=generator).to(dtype) for _ in range(2))
    return x, y


def model_of(job: DeepJob) -> Deep:
    """The same for whoever trains."""
    torch.manual_seed(0)
    return Deep(job.width, job.depth).to(getattr(torch, job.dtype))


def main() -> None:
    """Train, and say how it went."""
    folder = Path(sys.argv[1])
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=DeepJob)
    collective = init().collective
    operations = CountedOperations(collective.is_done)
    collective.operations = operations
    model = model_of(job)
    kind = torch.optim.AdamW if job.dtype == "float32" else MasterAdamW
    x, y = samples_of(job)
    data = TensorDataset(x.repeat(job.num_steps, 1), y.repeat(job.num_steps, 1))
    trainer = hetero_hvd.Trainer(
        model,
        kind(model.parameters(), lr=1e-4),
        DataLoader(data, job.batch, shuffle=True),
        shard_optimizer=job.shards,
    )
    ended_at: list[float] = []
    before: Counter[str] = Counter()
    for _ in trainer.epochs(1):
        for inputs, wanted in trainer.batches():
            trainer.step(lambda x, y: (model(x) - y).square().mean(), inputs, wanted)
            ended_at.append(time.perf_counter())
            before = before or operations.given.copy()
    given = operations.given - before
    sent = sent_bytes(given, collective.size) / max(1, job.num_steps - 1)
    shards = trainer._mode.shards  # noqa: SLF001 - nobody else has to know
    found = DeepResult(
        num_parameters=sum(each.numel() for each in model.parameters()),
        step_seconds=[after - before for before, after in pairwise(ended_at)],
        sent_bytes=sent,
        num_copies=0 if shards is None else min(len(part.holders) for part in shards.parts),
        own_bytes=own_bytes(),
    )
    (folder / f"rank-{collective.rank}.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
