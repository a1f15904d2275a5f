"""Trains the digits CNN with the profile switched on and off in turn: `… FOLDER` with job.json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.bench.workload_grains import SIZE, new_model
from hetero_hvd.worker.operations import OperationLog


class NoClock:
    """In the place of `PhaseClock`: measures nothing."""

    current = ("", 0.0)
    busy_seconds = None

    def phase(self, _name: str) -> nullcontext[None]:
        """Nothing around the block."""
        return nullcontext()

    def take(self) -> dict[str, float]:
        """No phase was entered."""
        return {}


class NoLog(OperationLog):
    """In the place of the log of operations: hears nothing."""

    def launched(self, *_: Any) -> None:  # noqa: ANN401 - whatever it is told
        """Forget it."""

    def glance(self) -> None:
        """Do not."""

    def done(self, *_: Any) -> None:  # noqa: ANN401
        """Forget it."""


class NoProfile:
    """In the place of `StepProfile`."""

    def step_applied(self, *_: Any) -> dict[str, float]:  # noqa: ANN401
        """Nothing was measured."""
        return {}

    def finish(self, *_: Any) -> None:  # noqa: ANN401
        """There is nothing to tell."""


class Switch:
    """Takes the measurements out of a trainer, and puts them back."""

    def __init__(self, trainer: hetero_hvd.Trainer) -> None:
        self._step, self._state = trainer._step, trainer._state  # noqa: SLF001 - their owner's bench
        self._collective = self._state.seat.collective
        profile = self._state._profile  # noqa: SLF001
        self._real = (self._step.clock, profile, self._collective.operations)
        self._none: tuple[Any, ...] = (NoClock(), NoProfile(), NoLog())
        # What is done with the measurements differs with what they say, and is measured elsewhere.
        self._state.is_urgent = lambda *_: False  # type: ignore[method-assign]
        self._state.membership.exchange.is_due = lambda step: False  # type: ignore[method-assign]  # noqa: ARG005

    def set(self, *, is_on: bool) -> None:
        """Measure from the next step on, or do not."""
        self._collective.operations.forget()
        clock, profile, operations = self._real if is_on else self._none
        self._step.clock = self._state._clock = clock  # noqa: SLF001
        self._state._profile = profile  # noqa: SLF001
        self._collective.operations = operations


def steps(job: dict[str, Any]) -> Iterator[tuple[bool, float, float]]:
    """Whether measured, wall and CPU seconds of this thread, of each step but a block's first."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE, 1, 8, 8, generator=generator)
    y = torch.randint(10, (SIZE,), generator=generator)
    model = new_model()
    loader = DataLoader(TensorDataset(x, y), job["batch_size"], shuffle=True, drop_last=True)
    trainer = hetero_hvd.Trainer(model, torch.optim.AdamW(model.parameters()), loader)
    switch: Switch | None = None
    num_epochs = 2 * job["num_rounds"] * job["block_steps"] // (SIZE // job["batch_size"])
    for _ in trainer.epochs(num_epochs):
        for images, labels in trainer.batches():
            block, place = divmod(trainer.applied_steps, job["block_steps"])
            if place == 0:
                switch = switch or Switch(trainer)
                switch.set(is_on=block % 2 == 1)
            began = (time.perf_counter(), time.thread_time())
            trainer.step(lambda x, y: cross_entropy(model(x), y), images, labels)
            wall, cpu = time.perf_counter() - began[0], time.thread_time() - began[1]
            if place > 0 and block > 1:
                yield block % 2 == 1, wall, cpu


def main() -> None:
    """Train; rank 0 leaves what each step took."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    found: dict[str, list[Sequence[float]]] = {"on": [], "off": []}
    for is_on, *seconds in steps(job):
        found["on" if is_on else "off"].append(seconds)
    if hetero_hvd.init().collective.rank == 0:
        (folder / "seconds.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
