"""A stream with shards, as `datasets` gives, that notes what is read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.utils.data import IterableDataset, get_worker_info


class ShardedStream(IterableDataset[float]):
    """Numbers in shards; in a loader's process that process's shards only, as `datasets` does it.

    Args:
        shards: The numbers in each.

    Attributes:
        num_read: How many were read so far, of all streams made of this one in this process.
    """

    num_read = 0

    def __init__(self, shards: Sequence[Sequence[float]]) -> None:
        self._shards = list(shards)

    @property
    def num_shards(self) -> int:
        """Parts that can be read by themselves."""
        return len(self._shards)

    def shard(self, num_shards: int, index: int) -> ShardedStream:
        """Every `num_shards`-th shard, from this one on."""
        return ShardedStream(self._shards[index::num_shards])

    def __iter__(self) -> Iterator[float]:
        found = get_worker_info()
        shards = self._shards if found is None else self._shards[found.id :: found.num_workers]
        for shard in shards:
            for number in shard:
                ShardedStream.num_read += 1
                yield number


def numbered(lengths: Sequence[int]) -> ShardedStream:
    """A stream whose samples are numbered through, in shards of these lengths."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return ShardedStream(
        [
            [float(number) for number in range(start, start + length)]
            for start, length in zip(starts, lengths, strict=True)
        ]
    )
