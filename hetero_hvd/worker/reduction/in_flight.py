"""The reductions of one step, from the moment they are submitted until they are applied."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from hetero_hvd.worker.comm.horovod import Collective, Handle, Interrupted
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.reduction.bucket import BucketSum, Gradients
from hetero_hvd.worker.reduction.buffer_average import BufferSum

ExchangeTrigger = Callable[[int, bool], bool]
"""Tells from the samples of a step, and whether its times are known already, whether timings are to
be exchanged now."""

Arrived = Callable[[], None] | None
"""Called when a reduction is complete."""


BETWEEN: tuple[Handle, Arrived] = (None, None)
"""One reduction is complete, and the next one is not started."""


def in_one_row(numbers: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of some numbers, in a third of the time that `torch.tensor` takes.

    Args:
        numbers: At least one.
        dtype: float32 or float64.
    """
    return torch.frombuffer(array("d" if dtype is torch.float64 else "f", numbers), dtype=dtype)


class OwnPart(NamedTuple):
    """What one worker adds to a step, in whichever rendezvous it is submitted.

    Attributes:
        part: This worker's part of the step.
        weight: Sum of its weights.
        weighted_loss: Sum of its losses times their weights.
        counted: What its loss functions have counted.
        loss_scale: Factor of the gradients, of a `GradScaler`; 1 without.
        model_code: See `Registered.code`.
        gradients: Of each bucket; they hold it where sums travel in copies.
    """

    part: Slice
    weight: float
    weighted_loss: float
    counted: float
    loss_scale: float
    model_code: int
    gradients: list[BucketSum]

    @property
    def is_finite(self) -> bool:
        """Whether the loss is."""
        return math.isfinite(self.weighted_loss)


@dataclass(kw_only=True)
class InFlightStep:
    """One step under way.

    Attributes:
        own: What this worker adds to it.
        gradients: Of the parameters.
        buffers: Of the model; None: it has none that are averaged.
        totals: Sum of weights, sum of weighted losses, how many workers are in a hurry; what else
            is counted; two sums of the digests of the workers' models.
        totals_handle: Of their reduction.
        check: Called with the rendezvous and the sums of the digests, before anything else is
            waited for: with different models the workers do not reduce the same.
    """

    own: OwnPart
    gradients: Gradients
    buffers: BufferSum | None
    totals: torch.Tensor
    totals_handle: Handle
    check: Callable[[Collective, Sequence[float]], None]
    _waiting: Iterator[tuple[Handle, Arrived]] = field(init=False)
    _next: tuple[Handle, Arrived] | None = field(init=False)
    _fault: Interrupted | None = field(init=False, default=None)
    _is_checked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """The totals come first, as they tell whether the rest fits."""
        self._next = (self.totals_handle, None)
        self._waiting = self._others()

    def _others(self) -> Iterator[tuple[Handle, Arrived]]:
        yield from self.gradients.operations()
        if self.buffers is not None:
            yield self.buffers.handle, None

    def is_done(self, collective: Collective) -> bool:
        """Whether `wait` would return, or fail, at once."""
        if self._next is None or self._fault is not None:
            return True
        more = [] if self.buffers is None else [self.buffers.handle]
        are_done = all(collective.is_done(handle) for handle in (self.totals_handle, *more))
        return are_done and self.gradients.is_done(collective)

    def wait(self, collective: Collective) -> None:
        """Block until all is reduced; may be called again.

        Raises:
            Interrupted: A reduction broke; the gradients are undefined, nothing else was changed.
            JobError: The workers' models differ.
        """
        while self._next is not None:
            if self._fault is not None:
                raise self._fault
            handle, arrived = self._next
            collective.wait(handle)
            if not self._is_checked:
                self._is_checked = True
                self.check(collective, self.totals.tolist()[-2:])
            if arrived is not None:
                arrived()
            del handle  # it may hold a copy of the gradients, which is to be gone before the next
            self._next = BETWEEN
            try:
                self._next = next(self._waiting, None)
            except Interrupted as fault:
                self._fault = fault
