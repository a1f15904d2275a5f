"""The same training for every peer: `python -m benchmarks.workloads.training PEER JOB.json`.

A small classifier on made-up data that it can learn. The first rank writes when each step ended,
the losses and the held-out accuracy. `hetero` runs under `hetero-hvd run`, `horovod` (its
DistributedOptimizer) under `horovodrun`, `ddp` under `torchrun`; the last two give each rank the
same share and hold their compute as emulated nodes do.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.messages.launch import EmulateSettings
from hetero_hvd.worker.step.emulation import Emulation

NUM_TRIALS = 15
"""Of a backward pass, to know how long it takes."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train, and where to say how it went.

    Attributes:
        out: File for the record.
        global_batch_size: Samples per step.
        num_steps: So many.
        steps_per_epoch: Size of the made-up data set, in steps.
        width: Width of the hidden layers: what a step costs where the compute is real.
        depth: Number of hidden layers.
        emulate: Settings of each rank's emulation, for the peers; empty: the compute is real.
        slow_node: `hetero` only: this node becomes twice as slow at `slow_step`.
        slow_step: See above; -1 never.
        options: Further arguments of `Trainer`.
        test_steps: Steps between two tests of the model, each of which counts as part of the step
            after it; 0: there are none.
        meeting: Folder in which each worker leaves a file when it could begin, and then waits for
            one named `go`; empty: it begins.
        seed: Of data and model.
    """

    out: str
    global_batch_size: int
    num_steps: int
    steps_per_epoch: int = 40
    width: int = 64
    depth: int = 1
    emulate: list[EmulateSettings] = []
    slow_node: str = ""
    slow_step: int = -1
    options: dict[str, Any] = {}
    test_steps: int = 10
    meeting: str = ""
    seed: int = 0


@dataclass
class Record:
    """What the first rank saw."""

    job: Job
    model: nn.Module
    held_out: tuple[torch.Tensor, torch.Tensor]
    ended_at: list[float] = field(default_factory=lambda: [time.perf_counter()])
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=lambda: [time.process_time()])

    def add(self, loss: float) -> None:
        """A step has ended; the model is tested after some of them."""
        self.ended_at.append(time.perf_counter())
        self.used.append(time.process_time())
        self.losses.append(loss)
        if self.job.test_steps and len(self.losses) % self.job.test_steps == 0:
            with torch.no_grad():
                found = self.model(self.held_out[0]).argmax(1)
            self.accuracies.append((found == self.held_out[1]).float().mean().item())

    def write(self) -> None:
        """Leave it for the harness."""
        facts = {
            "ended_at_seconds": self.ended_at,
            "losses": self.losses,
            "accuracies": self.accuracies,
            "used_seconds": self.used,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        Path(self.job.out).write_text(json.dumps(facts))


def data_of(job: Job) -> tuple[TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """Samples labelled by a random network, the same whatever the batch; training and held-out."""
    generator = torch.Generator().manual_seed(job.seed)
    first, last = (torch.randn(shape, generator=generator) for shape in ((16, 24), (24, 4)))
    x = torch.randn(500 + job.global_batch_size * job.steps_per_epoch, 16, generator=generator)
    y = (torch.tanh(x @ first / 2) @ last).argmax(1)
    return TensorDataset(x[500:], y[500:]), (x[:500], y[:500])


def model_of(job: Job) -> nn.Module:
    """The network to train, the same for every peer and rank."""
    torch.manual_seed(job.seed)
    widths = [16, *[job.width] * job.depth]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(job.width, 4))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The same for every peer."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_hetero(job: Job) -> None:
    """Our own."""
    import hetero_hvd  # noqa: PLC0415 - each peer loads its own framework
    from hetero_hvd.worker.session.launch_settings import read_launch_settings  # noqa: PLC0415

    dataset, held_out = data_of(job)
    model = model_of(job)
    loader = DataLoader(dataset, batch_size=job.global_batch_size, shuffle=True)
    trainer = hetero_hvd.Trainer(model, optimizer_of(model), loader, **job.options)
    record: Record | None = None
    settings = read_launch_settings()
    for _ in trainer.epochs(-(-job.num_steps // job.steps_per_epoch)):
        for x, y in trainer.batches():
            if record is None:
                meet(job.meeting)
                # Its clock starts when the workers have met, as with the other peers.
                record = Record(job, model, held_out)
            before = trainer.applied_steps
            loss = trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
            is_applied = trainer.applied_steps > before or not job.options.get("wait_free")
            if trainer.is_leader and is_applied:
                record.add(loss)
            if trainer.applied_steps == job.slow_step and settings.worker.node == job.slow_node:
                emulation = trainer._step.passes.emulation  # noqa: SLF001 - a fault, injected
                assert emulation is not None  # noqa: S101 - or there is no fault
                emulation.slow_down(2.0)
    if trainer.is_leader and record is not None:
        record.write()


def meet(folder: str) -> None:
    """Say that this worker is ready, and wait until all may begin."""
    if folder:
        Path(folder, str(os.getpid())).touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)


def train_horovod(job: Job) -> None:
    """Horovod as its documentation shows it."""
    import horovod.torch as hvd  # noqa: PLC0415

    hvd.init()
    model = model_of(job)
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    _train_evenly(job, model, optimizer, model, rank=hvd.rank(), size=hvd.size())
    hvd.shutdown()


def train_ddp(job: Job) -> None:
    """PyTorch's own data parallelism."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    model = model_of(job)
    wrapped = nn.parallel.DistributedDataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    _train_evenly(job, wrapped, optimizer_of(model), model, rank=rank, size=size)
    dist.barrier()  # or the first to leave aborts the others
    dist.destroy_process_group()


def _train_evenly(
    job: Job,
    model: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    plain: nn.Module,
    *,
    rank: int,
    size: int,
) -> None:
    dataset, held_out = data_of(job)
    share = job.global_batch_size // size
    sampler: Sequence[int] = range(rank, len(dataset), size)
    loader = DataLoader(dataset, batch_size=share, sampler=sampler)
    emulation = Emulation.of(job.emulate[rank]) if job.emulate else None
    backward_seconds = _backward_seconds(plain, dataset, share) if emulation else 0.0
    meet(job.meeting)
    record = Record(job, plain, held_out)
    num_steps = 0
    while num_steps < job.num_steps:
        for x, y in loader:
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            if emulation is not None:  # backward reduces as it goes, so it is held before
                emulation.hold(start - backward_seconds, share)
            loss.backward()
            optimizer.step()
            num_steps += 1
            value = loss.item()
            if rank == 0:
                record.add(value)
    if rank == 0:
        record.write()


def _backward_seconds(model: nn.Module, dataset: TensorDataset, num_samples: int) -> float:
    """Time of a backward pass alone, the median of some.

    Of a copy of the model: the frameworks' hooks on the original would wait for the reduction, and
    what counts as backward is taken off the time for which the emulated device is held.
    """
    twin = copy.deepcopy(model)
    x, y = dataset[:num_samples]
    taken = []
    for _ in range(NUM_TRIALS):
        loss = cross_entropy(twin(x), y)
        start = time.perf_counter()
        loss.backward()
        taken.append(time.perf_counter() - start)
    return median(taken)


def main() -> None:
    """Run one peer in this process."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    peer, path = sys.argv[1:]
    job = msgspec.json.decode(Path(path).read_bytes(), type=Job)
    {"hetero": train_hetero, "horovod": train_horovod, "ddp": train_ddp}[peer](job)


if __name__ == "__main__":
    main()
