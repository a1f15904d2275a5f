"""What the collective operations of this worker took, as the training loop sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_hvd.core.bandwidth import size_bucket
from hetero_hvd.messages import OperationTiming

Handle = Any

GLANCE_SECONDS = 0.0003
"""Between two glances: a layer's gradients come in bunches."""


@dataclass(slots=True)
class _Operation:
    """One under way, or since `take`."""

    op: str
    backend: str
    num_bytes: int
    began_at: float
    ended_at: float | None = None


class OperationLog:
    """Counts and times operations. Costs a few microseconds each, and asks nobody else.

    An operation ends when its end is *seen*: when the loop waits for it, submits another one, or
    glances at it, which it does at each parameter's gradient. So one that ends during a backward
    pass seems to last a little longer than it did; one that the loop waits for is exact.

    Args:
        is_done: Asks whether an operation has ended; cheap.
        clock: Seconds of any origin; never falls.

    Attributes:
        reducing_seconds: In which at least one sum was under way, since the start.
    """

    def __init__(
        self,
        is_done: Callable[[Handle], bool] = lambda _: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_done = is_done
        self._clock = clock
        self._looked_at = 0.0
        self._open: dict[Handle, _Operation] = {}
        self._ended: list[_Operation] = []
        self._num_reducing = 0
        self._reducing_since = 0.0
        self.reducing_seconds = 0.0

    def launched(self, handle: Handle, op: str, backend: str, num_bytes: int) -> None:
        """An operation was submitted.

        Args:
            handle: Tells it from the others under way.
            op: `allreduce`, `allgather` or `broadcast`.
            backend: `gloo` or `nccl`.
            num_bytes: Of the tensor; see `done` for an operation whose result has another size.
        """
        now = self._clock()
        if now - self._looked_at >= GLANCE_SECONDS:
            self._poll()
        self._open[handle] = _Operation(op, backend, num_bytes, now)
        if op == "allreduce":
            if not self._num_reducing:
                self._reducing_since = now
            self._num_reducing += 1

    def poll_if_due(self) -> None:
        """Note which operations have ended, unless that was done just now. Call it often."""
        if self._num_reducing and self._clock() - self._looked_at >= GLANCE_SECONDS:
            self._poll()

    def done(self, handle: Handle, num_bytes: int | None = None) -> None:
        """An operation has ended, and its result is taken.

        Args:
            handle: As given to `launched`; an unknown one is ignored.
            num_bytes: Of the result, if that is what counts (allgather).
        """
        operation = self._open.pop(handle, None)
        if operation is None:
            return
        if operation.ended_at is None:
            self._end(operation)
        if num_bytes is not None:
            operation.num_bytes = num_bytes
        self._ended.append(operation)

    def forget(self) -> None:
        """The operations under way are void: their rendezvous is over."""
        self._open.clear()
        if self._num_reducing:
            self._num_reducing = 0
            self.reducing_seconds += self._clock() - self._reducing_since

    def take(self) -> tuple[OperationTiming, ...]:
        """Totals since the last call, per operation, backend and size."""
        totals: dict[tuple[str, str, int], OperationTiming] = {}
        for each in self._ended:
            size, seconds = each.num_bytes, (each.ended_at or 0.0) - each.began_at
            key = (each.op, each.backend, size_bucket(size))
            total = totals.get(key)
            if total is None:
                totals[key] = OperationTiming.first(*key, num_bytes=size, seconds=seconds)
            else:
                totals[key] = total.plus(num_bytes=size, seconds=seconds)
        self._ended = []
        return tuple(totals[key] for key in sorted(totals))

    def _poll(self) -> None:
        self._looked_at = self._clock()
        for handle, operation in self._open.items():
            if operation.ended_at is None and self._is_done(handle):
                self._end(operation)

    def _end(self, operation: _Operation) -> None:
        operation.ended_at = self._clock()
        if operation.op == "allreduce":
            self._num_reducing -= 1
            if not self._num_reducing:
                self.reducing_seconds += operation.ended_at - self._reducing_since
