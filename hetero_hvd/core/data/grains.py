"""Grains: the fixed pieces of a global batch that are computed one by one, whoever computes them.

Grain g of a step is the positions `[g*G, (g+1)*G)` of its batch; only the last one of an epoch may
be shorter. All randomness of a grain is seeded by (seed, epoch, step, grain).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b

from hetero_hvd.core.data import shards


class Stream(IntEnum):
    """What random numbers are drawn for; each has its own stream."""

    DATA = 1
    MODEL = 2
    SCRIPT = 3
    UPDATE = 4
    EPOCH = 5
    EVALUATION_DATA = 6
    METRICS = 7
    AFTER_STEP = 8
    TRIAL = 9
    SAMPLER = 10


def divide(total: int, shares: Sequence[int], *, grain: int) -> tuple[int, ...]:
    """Divide a batch in whole grains, in proportion to a plan's shares.

    Args:
        total: Samples in the batch, > 0.
        shares: The plan's samples per rank, each >= 0; they sum to at least `total`.
        grain: Samples in a grain.

    Returns:
        Samples per rank, summing to `total`: each a multiple of `grain`, but for the last rank with
        work where `grain` does not divide `total`. `shares` itself where it is such a division.
    """
    num_grains = -(-total // grain)
    counts = shards.divide(num_grains, shares)
    sizes = [count * grain for count in counts]
    last = max(rank for rank, count in enumerate(counts) if count)
    sizes[last] -= num_grains * grain - total
    return tuple(sizes)


def pieces(mine: range, *, grain: int, start: int) -> Iterator[tuple[int, range]]:
    """A worker's part of a step, grain by grain.

    Args:
        mine: Positions of the worker, beginning at a grain's first.
        grain: Samples in a grain.
        start: First position of the step.

    Yields:
        Index of the grain in the step, and its positions.
    """
    for first in range(mine.start, mine.stop, grain):
        yield (first - start) // grain, range(first, min(first + grain, mine.stop))


def seed_of(seed: int, epoch: int, step: int, grain: int, stream: Stream) -> int:
    """A 64-bit seed, from a hash: the same for ever, in a microsecond.

    Args:
        seed: The run's seed, >= 0.
        epoch: Epoch, >= 0.
        step: Step in the epoch, >= 0.
        grain: Grain in the step, >= 0.
        stream: What for.
    """
    place = f"{seed} {epoch} {step} {grain} {stream:d}".encode()
    return int.from_bytes(blake2b(place, digest_size=8).digest(), "big")
