"""Loads a worker's chunks of an epoch in the order of its queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from hetero_hvd.worker.loader import ShareLoader


class ChunkLoader:
    """Hands out chunks, as far ahead as the script's loader likes.

    Args:
        source: The script's loader.
        epoch: Which permutation.
        size: Samples in a chunk.
        queue: This worker's chunks, as they are known at any time; it grows and shrinks.
    """

    def __init__(self, source: ShareLoader, epoch: int, size: int, queue: deque[int]) -> None:
        self._source, self._epoch, self._size, self._queue = source, epoch, size, queue
        self._asked: deque[int] = deque()
        self._seen: set[int] = set()
        self._batches = source.batches_of(self)

    def load(self, chunk: int) -> tuple[int, Any]:
        """Number of samples, and the batch.

        Args:
            chunk: Mostly the first of the queue that was not handed out; any other one, such as
                one to be computed again, is loaded in this process.
        """
        num_samples = len(self._positions(chunk))
        while chunk in self._asked or chunk not in self._seen:
            batch = next(self._batches, self)
            if batch is self:  # the queue was empty, and its loader has ended
                break
            if self._asked.popleft() == chunk:
                return num_samples, batch
        return num_samples, self._source.load_at(self._epoch, self._positions(chunk))

    def __iter__(self) -> Iterator[Sequence[Any]]:
        """What the loader asks; goes on after an end when the queue has grown."""
        return self

    def __next__(self) -> Sequence[Any]:
        """Indices of the samples of the next chunk that was not asked for yet."""
        for chunk in self._queue:
            if chunk not in self._seen:
                self._seen.add(chunk)
                self._asked.append(chunk)
                return self._source.indices(self._epoch, self._positions(chunk))
        raise StopIteration

    def _positions(self, chunk: int) -> range:
        start = chunk * self._size
        return range(start, min(start + self._size, self._source.num_samples))
