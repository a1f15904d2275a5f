"""Trains the digits CNN and times our own work around its steps: `… FOLDER` with its job.json."""

from __future__ import annotations

import json
import sys
import threading
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
    """Adds up the processor time of calls where training makes them, by what they belong to.

    The caches are as cold then as training leaves them. What a call takes in another part is none
    of its own.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner_seconds = 0.0

    def watch(self, part: str, owner: Any, *names: str) -> None:  # noqa: ANN401 - has methods
        """Time these methods of an object from now on."""
        for name in names:
            setattr(owner, name, self.timed(part, getattr(owner, name)))

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, timed."""
        self._seconds.setdefault(part, 0.0)

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the call
            outer, self._inner_seconds = self._inner_seconds, 0.0
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                took = time.thread_time() - began
                self._seconds[part] += took - self._inner_seconds
                self._inner_seconds = outer + took

        return timed

    def take(self) -> dict[str, float]:
        """Seconds by part since the last time."""
        taken, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return taken


class TimedBlock:
    """A phase under way; its begin and its end are timed, not what is between."""

    def __init__(
        self, stopwatch: Stopwatch, part: str, block: AbstractContextManager[None]
    ) -> None:
        self._enter = stopwatch.timed(part, block.__enter__)
        self._exit = stopwatch.timed(part, block.__exit__)

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *error: object) -> None:
        self._exit(*error)


def watch(trainer: hetero_hvd.Trainer) -> Stopwatch:
    """Time all that is done around the passes, the reduction and the optimizer of each step."""
    stopwatch = Stopwatch()
    step, state = trainer._step, trainer._state  # noqa: SLF001 - their owner's bench
    clock, sizing = step.passes.clock, step.passes.sizing
    stopwatch.watch("profile", clock, "phase", "take")
    phase = clock.phase
    clock.phase = lambda name: TimedBlock(stopwatch, "profile", phase(name))  # type: ignore[method-assign]
    operations = state.context.collective.operations
    stopwatch.watch("profile", operations, "launched", "poll_if_due", "done")
    stopwatch.watch("profile", state._profile, "look", "step_applied")  # noqa: SLF001
    state._pipeline.meanwhile = state._profile.look, sizing.look  # noqa: SLF001 - as it was
    stopwatch.watch("profile", state.times, "look", "add")
    stopwatch.watch("watchdog", state._watchdog, "learn")  # noqa: SLF001
    stopwatch.watch("exchange", state.membership.exchange, "is_due", "submit", "read")
    stopwatch.watch("exchange", state, "_act_on", "is_urgent")
    stopwatch.watch("exchange", state.times, "take")
    stopwatch.watch("micro-batches", sizing, "enter", "choose", "done", "timed", "look", "measured")
    stopwatch.watch("loader", trainer, "_next_part")
    stopwatch.watch("logging", trainer._values, "step_applied")  # noqa: SLF001
    return stopwatch


def thread_seconds() -> float:
    """Processor time of this process's Python threads beside the training one."""
    own = threading.get_native_id()
    threads = [str(each.native_id) for each in threading.enumerate() if each.native_id != own]
    files = (Path("/proc/self/task", number, "schedstat") for number in threads)
    return sum(int(file.read_text().split()[0]) for file in files) * 1e-9


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Measure all steps but the first; gives the fields of `OwnWork`."""
    generator = torch.Generator().manual_seed(1)
    size = EPOCH_STEPS * job["batch_size"]
    x = torch.randn(size, 1, 8, 8, generator=generator)
    y = torch.randint(10, (size,), generator=generator)
    model = new_model()
    loader = DataLoader(TensorDataset(x, y), job["batch_size"], shuffle=True)
    trainer = hetero_hvd.Trainer(model, torch.optim.AdamW(model.parameters()), loader)
    steps = _steps(trainer, model, job["num_steps"] // EPOCH_STEPS)
    next(steps)
    before, of_threads = thread_seconds(), 0.0
    step_seconds: list[float] = []
    parts: dict[str, list[float]] = {}
    for seconds, taken in steps:
        step_seconds.append(seconds)
        for name, each in taken.items():
            parts.setdefault(name, []).append(each)
        of_threads = thread_seconds() - before
    mean = of_threads / len(step_seconds)
    return {"step_seconds": step_seconds, "parts": parts, "thread_seconds": mean}


def _steps(
    trainer: hetero_hvd.Trainer, model: torch.nn.Module, num_epochs: int
) -> Iterator[tuple[float, dict[str, float]]]:
    stopwatch: Stopwatch | None = None
    began = 0.0
    for _ in trainer.epochs(num_epochs):
        for images, labels in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), images, labels)
            now = time.perf_counter()
            if stopwatch is None:
                stopwatch = watch(trainer)
                yield 0.0, {}
            else:
                yield now - began, stopwatch.take()
            began = time.perf_counter()


def main() -> None:
    """Train; rank 0 leaves what was measured."""
    folder = Path(sys.argv[1])
    found = train(json.loads((folder / "job.json").read_text()))
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
