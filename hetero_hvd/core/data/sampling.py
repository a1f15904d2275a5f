"""Which samples an epoch visits where some are drawn more often than others, or not at all.

As `shards.permutation`, all of it comes from NumPy's legacy generator, whose stream is frozen for
ever (NEP 19): torch draws other numbers on another processor, or in another version.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.data import shards


def uniform(
    num_samples: int, count: int, *, replacement: bool, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Samples of which all are equally likely, as torch's `RandomSampler` gives them.

    Args:
        num_samples: Samples in the dataset, > 0.
        count: How many to draw, >= 0; may be more than there are.
        replacement: Whether a sample may come again before all others have come.
        seed: The run's seed, >= 0.
        epoch: 0-based epoch, >= 0.
    """
    if replacement:
        return _generator(seed, epoch).randint(0, num_samples, count, dtype=np.int64)
    generator = _generator(seed, epoch)
    rounds = -(-count // num_samples)
    orders = [generator.permutation(num_samples) for _ in range(rounds)]
    return np.concatenate([np.empty(0, np.int64), *orders])[:count].astype(np.int64)


def weighted(
    weights: NDArray[np.float64], count: int, *, replacement: bool, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Samples that are as likely as their weights say, as torch's `WeightedRandomSampler` does.

    Args:
        weights: Of each sample, finite and >= 0, at least one > 0; without replacement at least
            `count` of them `likely`.
        count: How many to draw, >= 0.
        replacement: Whether a sample may come again.
        seed: The run's seed, >= 0.
        epoch: 0-based epoch, >= 0.
    """
    generator = _generator(seed, epoch)
    found: NDArray[np.int64] = generator.choice(
        len(weights), count, replace=replacement, p=likely(weights)
    )
    return found.astype(np.int64)


def likely(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of each sample; 0 too for weights far below the largest."""
    with np.errstate(over="ignore"):
        total = weights.sum()
    if np.isinf(total):
        return likely(weights / len(weights) / 2)
    found: NDArray[np.float64] = weights / total
    return found


def chosen(indices: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Each of these samples once, in an order of the epoch, as `SubsetRandomSampler` does."""
    return indices[shards.permutation(len(indices), seed=seed, epoch=epoch)]


def _generator(seed: int, epoch: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, epoch))))
