"""An order of the samples of many shards, of which each worker reads few, whatever its share.

Shards are laid one behind the other in lanes, and each batch takes as many samples from every lane:
those of the first lane, then those of the second. A worker's part of a batch is contiguous, so that
it lies in few lanes, and the same ones as long as its share stays; in each it reads on and on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def lanes_of(lengths: Sequence[int], order: Sequence[int], num_lanes: int) -> list[list[int]]:
    """Which shards lie in which lane: each next one in the lane that is shortest so far.

    Args:
        lengths: Samples of each shard, >= 0.
        order: The shards in the order in which they are laid, each once.
        num_lanes: > 0.

    Returns:
        Numbers of shards for each lane; lanes without a shard are left out.
    """
    lanes: list[list[int]] = [[] for _ in range(num_lanes)]
    filled = [0] * num_lanes
    for shard in order:
        lane = filled.index(min(filled))
        lanes[lane].append(shard)
        filled[lane] += lengths[shard]
    return [lane for lane in lanes if lane]


def lane_order(
    lengths: Sequence[int], lanes: Sequence[Sequence[int]], batch_size: int
) -> NDArray[np.int64]:
    """The order in which batches take the samples of all lanes, each exactly once.

    A lane that is short gives what it has, and the others more.

    Args:
        lengths: Samples of each shard; they are numbered through from the first shard on.
        lanes: See `lanes_of`.
        batch_size: Samples in a batch, > 0.

    Returns:
        Shape (sum of all lengths,): the sample at each position.
    """
    first = np.cumsum([0, *lengths])
    rows = [
        np.concatenate([np.arange(first[shard], first[shard + 1]) for shard in lane])
        for lane in lanes
    ]
    left = np.array([len(row) for row in rows])
    at = np.zeros(len(rows), np.int64)
    found = [np.empty(0, np.int64)]
    while left.any():
        counts = _counts(left, batch_size)
        some = counts > 0
        num_batches = int((left[some] // counts[some]).min())
        parts = [
            row[start : start + num_batches * count].reshape(num_batches, count)
            for row, start, count in zip(rows, at, counts, strict=True)
        ]
        found.append(np.hstack(parts).ravel())
        at += num_batches * counts
        left -= num_batches * counts
    return np.concatenate(found).astype(np.int64)


def _counts(left: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Samples that the next batch takes of each lane: as even as what is left allows."""
    counts = np.zeros_like(left)
    need = min(batch_size, int(left.sum()))
    while need:
        free = np.flatnonzero(left > counts)
        each, rest = divmod(need, len(free))
        wanted = each + (np.arange(len(free)) < rest)
        counts[free] += np.minimum(wanted, left[free] - counts[free])
        need = min(batch_size, int(left.sum())) - int(counts.sum())
    return counts
