"""Which samples of a stream are stored: each once, and what is missing is known by its numbers."""

from __future__ import annotations

from typing import NamedTuple

FIRST = 1
"""Number of the first sample of a stream."""

MAX_NUMBER = 2**53 - 1
"""Of a sample: JSON's numbers are exact up to here. A billion a second are enough for 100 days."""


class NumberRange(NamedTuple):
    """Samples of a stream, by their numbers.

    Attributes:
        first: Number of the first one.
        last: Number of the last one, >= `first`.
    """

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many."""
        return self.last - self.first + 1


class Accepted(NamedTuple):
    """What becomes of a batch.

    Attributes:
        num_duplicates: So many of its first samples are stored already.
        missing: What was never sent, between what is stored and the rest of the batch; None:
            nothing.
        next_sequence: Number of the first sample that is not stored afterwards.
    """

    num_duplicates: int
    missing: NumberRange | None
    next_sequence: int


def accept(next_sequence: int, first: int, count: int) -> Accepted:
    """Decide on a batch. A stream is sent in the order of its numbers, so that a gap stays one.

    Args:
        next_sequence: Number of the first sample that is not stored.
        first: Number of the first sample of the batch.
        count: How many it has, >= 0.
    """
    num_duplicates = min(max(0, next_sequence - first), count)
    if num_duplicates == count:
        return Accepted(num_duplicates, None, next_sequence)
    missing = NumberRange(next_sequence, first - 1) if first > next_sequence else None
    return Accepted(num_duplicates, missing, first + count)


def with_range(ranges: tuple[NumberRange, ...], added: NumberRange) -> tuple[NumberRange, ...]:
    """Ranges with another one, which is not before the last; neighbours become one."""
    if ranges and ranges[-1].last + 1 >= added.first:
        joined = NumberRange(ranges[-1].first, max(ranges[-1].last, added.last))
        return (*ranges[:-1], joined)
    return (*ranges, added)
