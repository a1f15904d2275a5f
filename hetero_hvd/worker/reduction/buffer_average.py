"""Keeps what forward passes keep, such as running statistics, the same on all workers.

Each worker's running mean is `(1 - m) * old + m * own mean`; its change, averaged with the samples
as weights, is that of the joined batch, exactly (it is linear). The running variance becomes the
mean of the workers' variances: what PyTorch's gradient accumulation gives too. What no forward pass
has changed stays as it is, whatever it holds: masks are full of infinities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.comm.horovod import Collective, Handle
from hetero_hvd.worker.model.registered import ModelSlot, Registered


class Kept(NamedTuple):
    """One buffer before the forward passes of a step.

    Attributes:
        place: Where it is registered.
        tensor: What was there; None: nothing was.
        before: A copy of it.
        version: Of the tensor, as torch counts its changes; -1: not counted.
    """

    place: ModelSlot
    tensor: torch.Tensor | None
    before: torch.Tensor | None
    version: int

    @classmethod
    def of(cls, place: ModelSlot) -> Kept:
        """As it is now."""
        tensor = place.get()
        if tensor is None:
            return cls(place, None, None, -1)
        return cls(place, tensor, tensor.detach().clone(), _version_of(tensor))

    def has_changed(self) -> bool:
        """Whether other values are there now.

        What is no part of the model's state may get another shape: it is a cache, built anew where
        it is needed.

        Raises:
            UserError: Something that is part of it got another shape.
        """
        now = self.place.get()
        if now is None or self.before is None or now.shape != self.before.shape:
            if now is not self.before and self.place.is_persistent:
                raise UserError(
                    f"the forward pass changes the shape of the buffer {self.place.name}: give it "
                    "its shape before training, or register it with persistent=False"
                )
            return False
        if now is self.tensor and _version_of(now) == self.version >= 0:
            return False
        return not _same_values(now, self.before)

    @torch.no_grad()
    def restore(self) -> None:
        """The same tensor with the same values."""
        if self.place.get() is not self.tensor:
            self.place.put(self.tensor)
        if self.tensor is None or self.before is None or _same_values(self.tensor, self.before):
            return  # a constant may be one that cannot be written to, such as an expanded one
        self.tensor.copy_(self.before)


@contextmanager
def kept_buffers(registered: Registered) -> Iterator[None]:
    """Afterwards the buffers of a model's state are as they were, whatever forward passes wrote.

    Args:
        registered: Of the model; buffers with `persistent=False` are left to the passes.
    """
    registered.look()
    kept = [Kept.of(place) for place in registered.places if place.is_persistent]
    try:
        yield
    finally:
        for each in kept:
            each.restore()


def _version_of(tensor: torch.Tensor) -> int:
    """Batch normalisation changes its statistics, of floating point, without counting that."""
    if tensor.is_floating_point() or tensor.is_inference():
        return -1
    return tensor._version  # noqa: SLF001 - documented for custom functions


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a shape hold the same, also where they hold NaN."""
    if torch.equal(one, other):
        return True
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


class BufferSum:
    """The buffers of one step on their way.

    Args:
        kept: As they were.
        flat: Where the sums arrive, float64.
        name: Of the reduction.

    Attributes:
        handle: Of the reduction, once it was started.
    """

    def __init__(self, kept: list[Kept], flat: torch.Tensor, name: str) -> None:
        self.kept = kept
        self.flat = flat
        self._name = name
        self.handle: Handle = None

    def start(self, collective: Collective) -> None:
        """Start the reduction.

        Raises:
            Interrupted: The rendezvous broke.
        """
        self.handle = collective.sum_async(self.flat, self._name)


class BufferAverage:
    """Averages what a step has changed in a model's persistent buffers, weighted by samples.

    Whole numbers and flags are rounded.

    Args:
        is_late: Steps begin before the last one is applied: buffers are reduced even by a worker
            alone, and stay unchanged until then.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self._is_late = is_late
        self._kept: list[Kept] = []

    def remember(self, places: Iterable[ModelSlot]) -> None:
        """Keep the buffers as they are before a step's forward passes change them."""
        self._kept = [Kept.of(place) for place in places if place.is_persistent]

    def restore(self) -> None:
        """Undo what forward passes did since `remember`: their step was not applied."""
        for kept in self._kept:
            kept.restore()

    def drop(self) -> None:
        """The same, and the step is over: what the script writes from now on stays."""
        self.restore()
        self._kept = []

    def seal(
        self, collective: Collective, num_samples: int, tag_index: int = 0
    ) -> BufferSum | None:
        """Make ready what is to be reduced; the buffers are again as they were.

        Args:
            collective: The rendezvous.
            num_samples: Samples that this worker's statistics have seen.
            tag_index: Part of its name; see `Reducer.prepare`.

        Returns:
            None where there is nothing to reduce: `write_back` has nothing to do then.

        Raises:
            UserError: The forward pass has changed a shape.
        """
        if not self._kept or (collective.size == 1 and not self._is_late):
            return None
        pieces, weights = [], []
        for kept in self._kept:
            weight = float(num_samples) if kept.has_changed() else 0.0
            weights.append(weight)
            if kept.before is not None:
                pieces.append(_contribution(kept, weight))
        flat = torch.cat([*pieces, torch.tensor(weights, dtype=torch.float64)])
        self.restore()
        all_kept, self._kept = self._kept, []
        return BufferSum(all_kept, flat, f"buffers.{tag_index}")

    def write_back(self, average: BufferSum | None, num_samples: float) -> None:
        """Change the buffers by what the workers have changed on average.

        Args:
            average: What `seal` gave.
            num_samples: Of all workers.
        """
        self._kept = []
        if average is not None:
            _move(average, num_samples)


@torch.no_grad()
def _move(average: BufferSum, num_samples: float) -> None:
    weights = average.flat[-len(average.kept) :].tolist()
    offset = 0
    for kept, weight in zip(average.kept, weights, strict=True):
        if kept.before is None:
            continue
        start = _numbers(kept.before)
        summed = average.flat[offset : offset + len(start)]
        offset += len(start)
        now = kept.place.get()
        if weight and now is not None and now.shape == kept.before.shape:
            moved = _numbers(now) + summed / num_samples
            # Where there was no number to change, those who have one now agree on their mean.
            _write(now, torch.where(start.isfinite(), moved, summed / weight))


def _contribution(kept: Kept, weight: float) -> torch.Tensor:
    """Weight times change; from 0 where there was no number."""
    assert kept.before is not None  # noqa: S101 - asked before
    start = _numbers(kept.before)
    now = kept.place.get()
    if not weight or now is None:
        return torch.zeros_like(start)
    return (_numbers(now) - start.nan_to_num(0.0, 0.0, 0.0)) * weight


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as float64 on the host, real and imaginary parts side by side."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.flatten().to(torch.float64)


def _write(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    if tensor.is_complex():
        tensor.copy_(torch.view_as_complex(numbers.view(-1, 2)).view_as(tensor))
    elif tensor.is_floating_point():
        tensor.copy_(numbers.view_as(tensor))
    else:
        tensor.copy_(numbers.round().view_as(tensor))
