"""Keeps what forward passes keep, such as running statistics, the same on all workers.

Each worker's running mean is `(1 - m) * old + m * own mean`; its change, averaged with the samples
as weights, is that of the joined batch, exactly (it is linear). The running variance becomes the
mean of the workers' variances: what PyTorch's gradient accumulation gives too. What no forward pass
has changed stays as it is, whatever it holds: masks are full of infinities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from operator import is_, itemgetter
from typing import NamedTuple

import numpy as np
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

    def current(self) -> torch.Tensor | None:
        """What is there now; None where it cannot be compared with what was.

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
            return None
        return now

    def has_changed(self) -> bool:
        """Whether other values are there now.

        Raises:
            UserError: Something that is part of the model's state got another shape.
        """
        now = self.current()
        if now is None or self.before is None:
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


class BufferRow:
    """Some buffers of one type on one device: all their numbers in a row, for few operations.

    Args:
        found: Of each buffer, by its number among all that are kept, its place and what is there.

    Attributes:
        kept: The buffers, by the same numbers.
    """

    def __init__(self, found: Mapping[int, tuple[ModelSlot, torch.Tensor]]) -> None:
        self._tensors = [tensor for _, tensor in found.values()]
        self._shapes = [each.shape for each in self._tensors]
        self._before = _in_a_row(self._tensors)
        self._is_complex = self._before.is_complex()
        self._sizes = [shape.numel() << self._is_complex for shape in self._shapes]
        self._parts = self._shaped(self._before)
        self.kept = {
            index: Kept(place, tensor, part, -1)
            for (index, (place, tensor)), part in zip(found.items(), self._parts, strict=True)
        }

    def renew(self) -> bool:
        """Keep the buffers as they are now, in the same memory; gives whether they are there."""
        tensors = [kept.place.get() for kept in self.kept.values()]
        if not all(map(is_, tensors, self._tensors)):
            return False
        _write(zip(self._parts, self._tensors, strict=True))
        return True

    def changes(self, num_samples: int) -> Iterator[tuple[int, float, torch.Tensor]]:
        """Number, weight, and change times weight of each buffer; all are again as they were.

        Raises:
            UserError: The forward pass has changed a shape.
        """
        tensors = [kept.current() for kept in self.kept.values()]
        now = self._row(tensors)
        changed = self._changed(now)
        weights = [float(num_samples) if each else 0.0 for each in changed]
        sums = torch.zeros(sum(self._sizes), dtype=torch.float64)
        if any(weights):
            each = self._spread(weights)
            start = _numbers(self._before).nan_to_num(0.0, 0.0, 0.0)  # from 0 where there was none
            sums = torch.where(each > 0, (_numbers(now) - start) * each, sums)
        self._restore(tensors, changed)
        return zip(self.kept, weights, sums.split(self._sizes), strict=True)

    @torch.no_grad()
    def move(self, weights: list[float], sums: list[torch.Tensor], num_samples: float) -> None:
        """Change the buffers by what the workers have changed on average.

        Args:
            weights: Of each, of all workers together; what has none stays as it is.
            sums: Of their changes times weights.
            num_samples: Of all workers.
        """
        if not any(weights):
            return
        places = [kept.place.get() for kept in self.kept.values()]
        tensors = [
            None if now is None or now.shape != shape else now
            for now, shape in zip(places, self._shapes, strict=True)
        ]
        summed, is_number = torch.cat(sums), _numbers(self._before).isfinite()
        moved = _numbers(self._row(tensors)) + summed / num_samples
        # Where there was no number to change, those who have one now agree on their mean.
        found = torch.where(is_number, moved, summed / self._spread(weights))
        parts = self._shaped(_typed(found, self._before))
        written = zip(tensors, parts, weights, strict=True)
        _write((now, part) for now, part, weight in written if weight and now is not None)

    def _shaped(self, row: torch.Tensor) -> list[torch.Tensor]:
        """The numbers of each buffer, in its shape."""
        parts = row.split([shape.numel() for shape in self._shapes])
        return [
            part if len(shape) == 1 else part.view(shape)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def _row(self, tensors: list[torch.Tensor | None]) -> torch.Tensor:
        """The numbers of what is there now; those from before where there is nothing."""
        pairs = zip(tensors, self._parts, strict=True)
        return _in_a_row([before if now is None else now for now, before in pairs])

    def _changed(self, now: torch.Tensor) -> list[bool]:
        """Which buffers hold other values; those that were NaN and are so hold the same."""
        is_alike = (now.dtype, now.device) == (self._before.dtype, self._before.device)
        if is_alike and torch.equal(now, self._before):
            return [False] * len(self._sizes)
        one, other = _numbers(self._before), _numbers(now)
        differs = (one != other) & ~(one.isnan() & other.isnan())
        if not (now.is_floating_point() or now.is_complex()):  # large ones are no float64
            differs = (now != self._before).cpu()
        counts = np.append(0, np.cumsum(differs.numpy()))[np.cumsum([0, *self._sizes])]
        return list(map(bool, np.diff(counts)))

    def _spread(self, numbers: list[float]) -> torch.Tensor:
        """A number of each buffer, for each of its elements."""
        found = torch.tensor(numbers, dtype=torch.float64)
        return found.repeat_interleave(torch.tensor(self._sizes))

    def _restore(self, tensors: list[torch.Tensor | None], changed: list[bool]) -> None:
        if all(map(is_, tensors, self._tensors)):
            pairs = zip(self._tensors, self._parts, strict=True)
            _write(compress(pairs, changed))
            return
        for kept in self.kept.values():
            kept.restore()


class BufferSum:
    """The buffers of one step on their way.

    Args:
        rows: As they were.
        sizes: How many numbers of each there are, in their order.
        flat: Where the sums arrive, float64.
        name: Of the reduction.

    Attributes:
        handle: Of the reduction, once it was started.
    """

    def __init__(
        self, rows: list[BufferRow], sizes: list[int], flat: torch.Tensor, name: str
    ) -> None:
        self.rows = rows
        self.sizes = sizes
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
        self._places: list[ModelSlot] = []
        self._rows: list[BufferRow] = []
        self._past: list[BufferRow] = []
        self._nothing: list[Kept] = []

    def remember(self, places: Iterable[ModelSlot]) -> None:
        """Keep the buffers as they are before a step's forward passes change them."""
        kept = [place for place in places if place.is_persistent]
        is_as_before = not self._is_late and kept == self._places
        if is_as_before and not self._nothing and all(row.renew() for row in self._past):
            self._rows = self._past
            return
        kinds: dict[object, dict[int, tuple[ModelSlot, torch.Tensor]]] = {}
        self._nothing = []
        for index, place in enumerate(kept):
            if (tensor := place.get()) is None:
                self._nothing.append(Kept.of(place))
            else:
                kinds.setdefault((tensor.dtype, tensor.device), {})[index] = (place, tensor)
        self._places = kept
        self._rows = self._past = list(map(BufferRow, kinds.values()))

    def restore(self) -> None:
        """Undo what forward passes did since `remember`: their step was not applied."""
        for kept in (*self._nothing, *(kept for row in self._rows for kept in row.kept.values())):
            kept.restore()

    def drop(self) -> None:
        """The same, and the step is over: what the script writes from now on stays."""
        self.restore()
        self._rows = []
        self._nothing = []

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
        if collective.size == 1 and not self._is_late:
            return None
        for kept in self._nothing:
            kept.current()
        if not self._rows:
            return None
        changes = (change for row in self._rows for change in row.changes(num_samples))
        found = sorted(changes, key=itemgetter(0))
        weights = torch.tensor([weight for _, weight, _ in found], dtype=torch.float64)
        sizes = [len(change) for _, _, change in found]
        flat = torch.cat([*(change for _, _, change in found), weights])
        rows = self._rows
        self._rows = []
        self._nothing = []
        return BufferSum(rows, sizes, flat, f"buffers.{tag_index}")

    def write_back(self, average: BufferSum | None, num_samples: float) -> None:
        """Change the buffers by what the workers have changed on average.

        Args:
            average: What `seal` gave.
            num_samples: Of all workers.
        """
        self._rows = []
        self._nothing = []
        if average is None:
            return
        *sums, weights = average.flat.split([*average.sizes, len(average.sizes)])
        numbers = sorted(index for row in average.rows for index in row.kept)
        arrived = dict(zip(numbers, zip(weights.tolist(), sums, strict=True), strict=True))
        for row in average.rows:
            of_row = [arrived[index] for index in row.kept]
            row.move([weight for weight, _ in of_row], [each for _, each in of_row], num_samples)


@torch.no_grad()
def _in_a_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All elements, of one type where all are of it, on the device of the first."""
    first = tensors[0]
    if any(each.dtype != first.dtype or each.device != first.device for each in tensors):
        return torch.cat([_numbers(each) for each in tensors])
    return torch.cat([each if each.dim() == 1 else each.reshape(-1) for each in tensors])


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as float64 on the host, real and imaginary parts side by side."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.flatten().to(torch.float64)


def _typed(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The reverse of `_numbers`."""
    if like.is_complex():
        return torch.view_as_complex(numbers.view(-1, 2)).to(like)
    return (numbers if like.is_floating_point() else numbers.round()).to(like)


@torch.no_grad()
def _write(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write the second of each pair to the first."""
    if found := list(pairs):
        places, values = zip(*found, strict=True)
        torch._foreach_copy_(places, values)
