"""The phases of a training loop that somebody else has written, told from what it calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hetero_hvd.probes.phase_clock import NO_PHASE, Event, PhaseClock
from hetero_hvd.worker.accelerator import device_clock
from hetero_hvd.worker.step.emulation import Emulation


class LoopClock:
    """Times the training thread between two updates of the optimizer.

    A step is `next(loader)`, the forward pass up to `backward()`, that, the waits for operations
    with all workers, and the update. Where no `DataLoader` is used, all since the update before is
    the forward pass. What is done without gradients, as an evaluation is, belongs to none of them.

    Args:
        emulation: Slows the compute down; None: it does not.

    Attributes:
        clock: The time of each phase.
    """

    def __init__(self, emulation: Emulation | None) -> None:
        self.clock = PhaseClock()
        self._emulation = emulation
        self._thread = threading.get_ident()
        self._forward: tuple[float, tuple[Event, Event] | None] | None = None
        self._since = time.perf_counter()
        self._num_samples = 0
        self._has_loader = self._is_in_backward = self._is_waiting = False

    def measure_on(self, device: torch.device) -> None:
        """The model is there: let the device's own clock time what its queue takes."""
        self.clock.use(device_clock(device))

    def load(self, load: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the loader yields
        """Around `next` of a loader."""
        if not self._is_own:
            return load()
        self._drop_forward()  # of a batch that the script has left
        if not torch.is_grad_enabled():
            return load()
        with self.clock.phase("data_wait"):
            batch = load()
        self._has_loader = True
        self._num_samples += num_samples_of(batch)
        self._since = time.perf_counter()
        self._begin_forward()
        return batch

    def wait(self, run: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is reduced
        """Around a wait for the other workers, in a step or between two; one may be in another."""
        if self._is_waiting or self._is_in_backward or not self._is_own:
            return run()
        was_forward = self._end_forward()
        self._is_waiting, began = True, time.perf_counter()
        try:
            with self.clock.phase("comm_wait"):
                return run()
        finally:
            self._is_waiting = False
            self._since += time.perf_counter() - began
            if was_forward:
                self._begin_forward()

    def backward(self, run: Callable[[], None]) -> None:
        """Around a backward pass; one within another, as checkpoints make them, is a part of it."""
        if self._is_in_backward or not self._is_own:
            run()
            return
        if not self._end_forward() and not self._has_loader:
            self.clock.add("forward", time.perf_counter() - self._since)
        self._is_in_backward = True
        try:
            with self.clock.phase("backward"):
                run()
                self._hold()
        finally:
            self._is_in_backward = False
            self._since = time.perf_counter()

    def _hold(self) -> None:
        if self._emulation is not None:
            self._emulation.stretch(self._since)
            self._emulation.hold(self._since, self._num_samples)

    def take(self) -> tuple[int, dict[str, float]]:
        """A step has ended: its samples on this worker, 1 if they are not known, and its phases."""
        self._drop_forward()
        num_samples, self._num_samples = self._num_samples, 0
        self._since = time.perf_counter()
        return num_samples or 1, self.clock.take()

    def forget(self) -> None:
        """The step under way broke."""
        self.take()

    @property
    def _is_own(self) -> bool:
        return threading.get_ident() == self._thread

    def _begin_forward(self) -> None:
        events = self.clock.new_events("forward")
        if events is not None:
            events[0].record()
        self._forward = (self.clock.begin("forward"), events)

    def _end_forward(self) -> bool:
        """Whether one was under way."""
        forward, self._forward = self._forward, None
        if forward is None:
            return False
        began, events = forward
        if events is not None:
            events[1].record()
        self.clock.end("forward", began, events)
        return True

    def _drop_forward(self) -> None:
        if self._forward is not None:
            self._forward = None
            self.clock.current = NO_PHASE


def num_samples_of(batch: object) -> int:
    """Samples in what a loader has yielded: the length of its first tensor; 0 if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Mapping | tuple | list):
        return 0
    return next((found for part in parts if (found := num_samples_of(part))), 0)  # type: ignore[attr-defined]
