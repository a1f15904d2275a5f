"""A bucket of gradients: one flat buffer that is summed over the workers in one reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch.nn import Parameter

from hetero_hvd.worker.comm.horovod import Collective, Handle
from hetero_hvd.worker.options import Compression

HALVES = torch.float16, torch.bfloat16
"""Horovod has no bfloat16, and half-precision sums lose bits: both travel as float32."""

NUM_WIDENED = 2
"""Buckets of half precision that are there in float32 at once, which is twice their size: one that
travels and the next. All of them would take as much as all gradients in float32."""


class BucketSum:
    """One bucket's gradients while they are being summed.

    Args:
        bucket: Whose.
        wire: What travels, and where the sum arrives; the bucket's own buffer, or a copy.
        own: What this worker adds, if that is kept.
        rounding: What rounding has lost in it, and what was owed before; None: that is not kept.
        widens: Whether the bucket's own buffer travels in float32, and gets the sum back.

    Attributes:
        wire: As above; where it widens, float32 from its start until the sum has arrived.
        handle: Of the reduction, once it was started; of one that widens, until the sum has
            arrived, as it holds the copy, too.
        total: Sum of all elements, float32; None: its sum is not known to be there.
    """

    def __init__(
        self,
        bucket: Bucket,
        wire: torch.Tensor,
        own: torch.Tensor | None,
        rounding: Rounding | None,
        *,
        widens: bool = False,
    ) -> None:
        self.bucket = bucket
        self.widens = widens
        self.wire = wire
        self.own = own
        self._rounding = rounding
        self.handle: Handle = None
        self.total: torch.Tensor | None = None

    def again(self) -> BucketSum:
        """The same to be summed once more, in another rendezvous; `own` must have been kept.

        What rounding has lost is not made up for again.
        """
        assert self.own is not None  # noqa: S101 - who asks has let it be kept
        return BucketSum(self.bucket, self.bucket.wire_of(self.own), self.own, None)

    def arrived(self) -> None:
        """Its sum is there: add up its elements, which takes a pass, while others are under way."""
        if self.total is None:
            self.total = self.wire.sum().float()
            if self.widens:
                self.bucket.flat.copy_(self.wire)
                self.wire = self.bucket.flat
                self.handle = None

    def start(self, collective: Collective, tag_index: int) -> None:
        """Start the reduction, if that has not happened."""
        if self.handle is None and self.total is None:
            if self.widens:
                self.wire = self.bucket.flat.float()
            name = f"gradients.{self.bucket.index}.{tag_index}"
            self.handle = collective.sum_async(self.wire, name)

    @property
    def is_wide(self) -> bool:
        """Whether there is a copy of it in float32 just now."""
        return self.widens and self.wire is not self.bucket.flat

    def write_back(self, factor: float) -> None:
        """Leave the sum, times `factor`, in the parameters' `grad`."""
        self._show(self.wire, factor)

    def predict(self, factor: float) -> None:
        """The same with what this worker adds."""
        if self.own is not None:
            self._show(self.own, factor)

    def _show(self, values: torch.Tensor, factor: float) -> None:
        bucket = self.bucket
        if values is not bucket.flat:
            bucket.flat.copy_(values)
        used = bucket.used.tolist()
        for parameter, view, flag in zip(bucket.parameters, bucket.views, used, strict=True):
            parameter.grad = view if flag and parameter.requires_grad else None
        if factor != 1.0:
            bucket.flat.mul_(factor)

    def settle(self, factor: float | None) -> None:
        """It was applied, times `factor`; or not at all: None."""
        if self._rounding is not None:
            self.bucket.owe(self._rounding.owed(factor))
            self._rounding = None


class Rounding(NamedTuple):
    """What one worker's rounding to fp16 leaves to be made up for.

    Attributes:
        lost: What the wire lacks, in units of the reduced sum.
        before: What was owed, and added to the sum; in units of the gradient.
        expected_factor: From the sum to the gradient, when it was added.
    """

    lost: torch.Tensor
    before: torch.Tensor | None
    expected_factor: float

    def owed(self, factor: float | None) -> torch.Tensor | None:
        """In units of the gradient, now that the true factor is known; None: it was not applied."""
        if factor is None or self.before is None:
            return self.before if factor is None else self.lost * factor
        return self.lost * factor + self.before * (1.0 - factor / self.expected_factor)


class Bucket:
    """Gradients of several parameters in one flat buffer, then one `used` flag for each.

    The first gradient of a parameter in a step is copied into the buffer, and `grad` is a view of
    it from then on, to which further passes add. The flags are summed along: a parameter that no
    worker used keeps `grad=None`, as it would in one process.

    Args:
        index: Of the bucket.
        parameters: Of one type, on one device.
        compression: See `Reducer`.
    """

    def __init__(self, index: int, parameters: list[Parameter], compression: Compression) -> None:
        self.index = index
        self._compression = compression
        self._owed: torch.Tensor | None = None
        self.parameters = parameters
        first = parameters[0]
        elements = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(elements + len(parameters), dtype=first.dtype, device=first.device)
        self.views, offset = [], 0
        for parameter in parameters:
            view = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            self.views.append(view)
            offset += parameter.numel()
        self.used = self.flat[offset:]
        self.sum: BucketSum | None = None
        self.is_closed = False
        self.pending: set[int] = set()
        self.seen = [0.0] * len(parameters)

    def prepare(self) -> None:
        """No gradient is there yet."""
        self.sum = None
        self.is_closed = False
        self.pending = set(range(len(self.parameters)))
        self.seen = [0.0] * len(self.parameters)
        self._forget()

    def close(self) -> None:
        """Let further gradients go elsewhere, where the hook drops them."""
        self.is_closed = True
        self._forget()

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def widens(self) -> bool:
        """Whether it travels as float32, in twice its size."""
        return self._compression == "none" and self.flat.dtype in HALVES

    def owe(self, more: torch.Tensor | None) -> None:
        """Make up for this in the next reduction."""
        if more is not None:
            self._owed = more if self._owed is None else self._owed + more

    def complete(self) -> None:
        """No further gradient comes: what no pass has used is zero."""
        if all(self.seen):
            self.used.fill_(1.0)
        else:
            self.used.copy_(torch.tensor(self.seen))
            for view, seen in zip(self.views, self.seen, strict=True):
                if not seen:
                    view.zero_()

    def seal(self, *, copies: bool, factor: float) -> None:
        """Make ready what travels, which is final from now on; see `Reducer`."""
        own = self.flat.clone() if copies else None
        widens = self.widens and not copies
        wire, rounding = (
            (self.flat, None) if widens else self._on_the_wire(copies=copies, factor=factor)
        )
        self.sum = BucketSum(self, wire, own, rounding, widens=widens)

    def wire_of(self, values: torch.Tensor) -> torch.Tensor:
        """What travels of these values, in memory of its own."""
        dtype = torch.float32 if self.widens else values.dtype
        return values.to(dtype if self._compression == "none" else torch.float16, copy=True)

    def _on_the_wire(self, *, copies: bool, factor: float) -> tuple[torch.Tensor, Rounding | None]:
        if self._compression == "none" and not copies and not self.widens:
            return self.flat, None
        if self._compression != "fp16-feedback":
            return self.wire_of(self.flat), None
        before, self._owed = self._owed, None
        if before is not None:
            self.flat.add_(before / factor)
        wire = self.flat.half()
        lost = torch.nan_to_num(self.flat - wire, nan=0.0, posinf=0.0, neginf=0.0)
        lost[-len(self.parameters) :] = 0.0  # the flags are exact
        return wire, Rounding(lost, before, factor)


class Gradients:
    """The gradients of one step, on their way.

    Args:
        sums: Of each bucket.
        own_are_finite: Whether this worker's own hold no infinity and no NaN; None: not looked at.
        start: Starts the reduction of one, if that has not happened.
    """

    def __init__(
        self,
        sums: list[BucketSum],
        own_are_finite: bool | None,
        start: Callable[[BucketSum], None],
    ) -> None:
        self._sums = sums
        self._start = start
        self.own_are_finite = own_are_finite

    def operations(self) -> Iterator[tuple[Handle, Callable[[], None]]]:
        """The reductions, and for each of them what to call as soon as it is complete.

        Wait for one before you ask for the next: some are started only then, which raises
        Interrupted if the rendezvous broke. All workers wait in the same order, and none for one
        that it has not started: so none waits for ever.
        """
        for number, each in enumerate(self._sums):
            for other in self._sums[number : number + NUM_WIDENED]:
                self._start(other)
            if each.total is None:
                yield each.handle, each.arrived

    def is_done(self, collective: Collective) -> bool:
        """Whether none is under way or still to be started."""
        handles = [each.handle for each in self._sums if each.total is None]
        return all(handle is not None and collective.is_done(handle) for handle in handles)

    def are_finite(self) -> bool:
        """Whether the reduced gradients hold no infinity and no NaN; the same on all workers."""
        for each in self._sums:
            each.arrived()
        if _are_finite([each.total for each in self._sums if each.total is not None]):
            return True
        return all(bool(each.wire.isfinite().all()) for each in self._sums)

    def write_back(self, factor: float) -> None:
        """Leave the reduced gradients, times `factor`, in the parameters' `grad`."""
        for each in self._sums:
            each.write_back(factor)

    def predict(self, factor: float) -> bool:
        """The same with this worker's own gradients, which must be kept; False if not finite."""
        owns = [each.own.sum().float() for each in self._sums if each.own is not None]
        if not owns or not _are_finite(owns):
            return False
        for each in self._sums:
            each.predict(factor)
        return True

    def settle(self, factor: float | None) -> None:
        """They were applied with this factor, from the sum to the gradient; None: they were not."""
        for each in self._sums:
            each.settle(factor)


def submitted_again(sums: Sequence[BucketSum], collective: Collective, tag_index: int) -> Gradients:
    """The gradients of a step whose reduction broke, submitted once more as they were.

    Args:
        sums: Of each bucket, with what this worker adds.
        collective: Another rendezvous.
        tag_index: See `Reducer.prepare`.

    Raises:
        Interrupted: It broke, too.
    """

    def start(each: BucketSum) -> None:
        each.start(collective, tag_index)

    fresh = [each.again() for each in sums]
    for each in fresh:
        start(each)
    return Gradients(fresh, None, start)


def _are_finite(totals: Sequence[torch.Tensor]) -> bool:
    """Whether all of some sums of elements are finite, which is not so if one element is not.

    They are read from the device once, whatever their number.
    """
    return not totals or math.isfinite(float(reduce(add, totals)))
