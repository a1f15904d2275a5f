"""Trains the digits CNN and times every call of the profile: `… FOLDER` with its job.json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from benchmarks.workloads.grains import new_model

EPOCH_STEPS = 5


class Stopwatch:
    """Adds up the time of calls, where they are made: with caches as cold as training leaves them.

    Attributes:
        seconds: Since it was last set to zero.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: Any, *names: str) -> None:  # noqa: ANN401 - whatever has methods
        """Time these methods of an object from now on."""
        for name in names:
            setattr(owner, name, self.timed(getattr(owner, name)))

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the call
            began = time.perf_counter()
            result = call(*arguments, **named)
            self.seconds += time.perf_counter() - began
            return result

        return timed


class TimedBlock:
    """A phase under way; its begin and its end are timed, not what is between."""

    def __init__(self, stopwatch: Stopwatch, block: AbstractContextManager[None]) -> None:
        self._enter = stopwatch.timed(block.__enter__)
        self._exit = stopwatch.timed(block.__exit__)

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *error: object) -> None:
        self._exit(*error)


def watch(trainer: hetero_hvd.Trainer) -> Stopwatch:
    """Time everything that is measured in or after each step."""
    stopwatch = Stopwatch()
    step, state = trainer._step, trainer._state  # noqa: SLF001 - their owner's bench
    clock = step.passes.clock
    stopwatch.watch(clock, "phase", "take")
    phase = clock.phase
    clock.phase = lambda name: TimedBlock(stopwatch, phase(name))  # type: ignore[method-assign]
    stopwatch.watch(state.context.collective.operations, "launched", "poll_if_due", "done")
    stopwatch.watch(state._profile, "step_applied")  # noqa: SLF001
    stopwatch.watch(state.times, "look", "add")
    stopwatch.watch(state._watchdog, "learn")  # noqa: SLF001
    return stopwatch


def steps(job: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Seconds of each step, from batch to batch, and of those the profile's."""
    generator = torch.Generator().manual_seed(1)
    size = EPOCH_STEPS * job["batch_size"]
    x = torch.randn(size, 1, 8, 8, generator=generator)
    y = torch.randint(10, (size,), generator=generator)
    model = new_model()
    loader = DataLoader(TensorDataset(x, y), job["batch_size"], shuffle=True)
    trainer = hetero_hvd.Trainer(model, torch.optim.AdamW(model.parameters()), loader)
    stopwatch: Stopwatch | None = None
    began = 0.0
    for _ in trainer.epochs(job["num_steps"] // EPOCH_STEPS):
        for images, labels in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), images, labels)
            now = time.perf_counter()
            if stopwatch is None:
                stopwatch = watch(trainer)
            else:
                yield now - began, stopwatch.seconds
            stopwatch.seconds, began = 0.0, now


def main() -> None:
    """Train; rank 0 leaves what each step took."""
    folder = Path(sys.argv[1])
    seconds = list(steps(json.loads((folder / "job.json").read_text())))
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
