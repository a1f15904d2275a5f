"""Which samples each step consumes, and which of them each worker takes.

Step k of an epoch consumes positions `[k*B, (k+1)*B)` of a permutation that depends on nothing but
the seed and the epoch. Plans, worker counts and resets only decide who takes which slice, so the
data's state is (epoch, step) and nothing is lost or repeated over any change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def permutation(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which one epoch visits the dataset: sample index at each position.

    Drawn from NumPy's legacy generator, whose stream is frozen for ever (NEP 19), so that nodes
    with different NumPy versions agree. 10 million samples take about 0.4 s.

    Args:
        num_samples: Samples in the dataset, >= 0.
        seed: The run's seed, >= 0.
        epoch: 0-based epoch, >= 0.

    Returns:
        Shape (num_samples,), each of `0 … num_samples - 1` exactly once.
    """
    bits = np.random.MT19937(np.random.SeedSequence((seed, epoch)))
    order: NDArray[np.int64] = np.arange(num_samples, dtype=np.int64)
    np.random.RandomState(bits).shuffle(order)
    return order


def steps_per_epoch(num_samples: int, global_batch_size: int, *, drop_last: bool) -> int:
    """Optimizer steps in one epoch; the last, smaller batch counts unless it is dropped."""
    whole, rest = divmod(num_samples, global_batch_size)
    return whole + (rest > 0 and not drop_last)


def step_positions(
    step_in_epoch: int, *, num_samples: int, global_batch_size: int, first_sample: int = 0
) -> range:
    """Positions of the epoch's permutation that this step consumes, whoever computes it.

    Args:
        step_in_epoch: Which step, >= 0.
        num_samples: Samples in the dataset, >= 0.
        global_batch_size: Samples in a step, > 0.
        first_sample: Position at which step 0 begins, >= 0.
    """
    start = min(first_sample + step_in_epoch * global_batch_size, num_samples)
    return range(start, min(start + global_batch_size, num_samples))


def divide(total: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Scale a plan down to a smaller batch: proportional, largest remainder, ties to lower ranks.

    Args:
        total: Samples in the batch, 0 … sum(shares).
        shares: The plan's samples per rank, each >= 0.

    Returns:
        Samples per rank: sums to `total`, none above its share, and `shares` itself when it fits.

    Raises:
        ValueError: The batch is larger than the plan.
    """
    planned = sum(shares)
    if not 0 <= total <= planned:
        raise ValueError(f"a batch of {total} samples: must be 0 to {planned}, as planned")
    if total == planned:
        return tuple(shares)
    sizes = [total * share // planned for share in shares]
    remainders = [total * share % planned for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda rank: (-remainders[rank], rank))
    for rank in by_remainder[: total - sum(sizes)]:
        sizes[rank] += 1
    return tuple(sizes)


def slice_of(positions: range, sizes: Sequence[int], rank: int) -> range:
    """The contiguous part of a step's positions that this rank takes, in rank order."""
    start = sum(sizes[:rank])
    return positions[start : start + sizes[rank]]
