"""A stream with shards, as `datasets` gives, that notes what is read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch.utils.data import ChainDataset, Dataset, IterableDataset, Subset, get_worker_info

from hetero_hvd.data import StreamShards


class ShardedStream(IterableDataset[Any]):
    """Numbers in shards; in a loader's process that process's shards only, as `datasets` does it.

    Args:
        shards: The numbers in each.
        read: What is given of the numbers of a shard.

    Attributes:
        num_read: How many were read so far, of all streams made of this one in this process.
    """

    num_read = 0

    def __init__(
        self,
        shards: Sequence[Sequence[Any]],
        read: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    ) -> None:
        self._shards = list(shards)
        self._read = read

    @property
    def num_shards(self) -> int:
        """Parts that can be read by themselves."""
        return len(self._shards)

    def shard(self, num_shards: int, index: int) -> ShardedStream:
        """Every `num_shards`-th shard, from this one on."""
        return ShardedStream(self._shards[index::num_shards], self._read)

    def __iter__(self) -> Iterator[Any]:
        found = get_worker_info()
        shards = self._shards if found is None else self._shards[found.id :: found.num_workers]
        for shard in shards:
            for number in self._read(shard):
                ShardedStream.num_read += 1
                yield number


def numbered(
    lengths: Sequence[int], read: Callable[[Sequence[Any]], Iterable[Any]] = iter
) -> ShardedStream:
    """A stream whose samples are numbered through, in shards of these lengths."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    shards = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return ShardedStream(shards, read)


class Iterating(IterableDataset[Any]):
    """Calls a function for an iterator each time that it is read: of a list, or a generator.

    Args:
        begin: Gives the samples.
    """

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self._begin())


class Pipeline(IterableDataset[Any]):
    """Stages that each take the iterator of the one before, as WebDataset has them.

    Args:
        stages: The first one is an iterable.
    """

    def __init__(self, *stages: Any) -> None:
        self._stages = stages

    def __iter__(self) -> Iterator[Any]:
        found, *others = self._stages
        for stage in others:
            found = stage(found)
        return iter(found)


def _halves(rows: Sequence[Any]) -> ShardedStream:
    return ShardedStream([rows[: len(rows) // 2], rows[len(rows) // 2 :]])


def _chained(rows: Sequence[Any]) -> ChainDataset:
    middle = len(rows) // 2
    return ChainDataset([Iterating(lambda: rows[:middle]), _halves(rows[middle:])])


def _sharded(rows: Sequence[Any]) -> StreamShards:
    found = _halves(rows)
    return StreamShards(found, [len(rows) // 2, len(rows) - len(rows) // 2])


STREAMS: dict[str, Callable[[Sequence[Any]], IterableDataset[Any]]] = {
    "an iterable": lambda rows: Iterating(lambda: rows),
    "a generator": lambda rows: Iterating(lambda: (row for row in rows)),
    "shards, as datasets gives": _halves,
    "stages, as WebDataset has them": lambda rows: Pipeline(rows, partial(map, lambda row: row)),
    "a chain of streams": _chained,
}
"""Kinds of data sets without positions, of the same samples."""

WITH_POSITIONS: dict[str, Callable[[Sequence[Any]], Dataset[Any]]] = {
    "map-style": lambda rows: Subset(rows, range(len(rows))),  # type: ignore[arg-type]
    "a stream's shards": _sharded,
}
"""Kinds that a job divides, of the same samples."""
