"""Loads a worker's chunks of an epoch in the order of its queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from hetero_hvd.worker.data.share_loader import ShareLoader


class ChunkRequests:
    """What a loader is asked for, one chunk after the other; it goes on when the queue has grown.

    It knows nothing of the loader's batches: were both of one cycle, only Python's collector would
    end the loader's processes, late, in any order, and with a pause of five seconds for each.

    Args:
        source: The script's loader.
        epoch: Which permutation.
        size: Samples in a chunk.
        queue: This worker's chunks, as they are known at any time; it grows and shrinks.

    Attributes:
        asked: Chunks whose batches have not come yet, in order.
    """

    def __init__(self, source: ShareLoader, epoch: int, size: int, queue: deque[int]) -> None:
        self._source = source
        self._epoch = epoch
        self._size = size
        self._queue = queue
        self._seen: set[int] = set()
        self._urgent: deque[int] = deque()
        self.asked: deque[int] = deque()

    def hurry(self, chunk: int) -> None:
        """Ask for a chunk next, unless it is asked for already."""
        if chunk not in self.asked:
            self._urgent.append(chunk)

    def forget(self, chunk: int) -> None:
        """Ask for a chunk again when it is in the queue again."""
        self._seen.discard(chunk)

    def num_samples(self, chunk: int) -> int:
        """The last one of an epoch may have fewer."""
        return len(self._positions(chunk))

    def __iter__(self) -> Iterator[Sequence[Any]]:
        """What the loader asks; goes on after an end when the queue has grown."""
        return self

    def __next__(self) -> Sequence[Any]:
        """Indices of the samples of the next chunk that was not asked for yet."""
        unseen = (chunk for chunk in self._queue if chunk not in self._seen)
        chunk = self._urgent.popleft() if self._urgent else next(unseen)
        self._seen.add(chunk)
        self.asked.append(chunk)
        return self._source.indices(self._epoch, self._positions(chunk))

    def _positions(self, chunk: int) -> range:
        start = chunk * self._size
        return range(start, min(start + self._size, self._source.num_samples))


class ChunkLoader:
    """Hands out chunks, as far ahead as the script's loader likes.

    Args:
        source: The script's loader.
        epoch: Which permutation.
        size: Samples in a chunk.
        queue: This worker's chunks, as they are known at any time; it grows and shrinks.
    """

    def __init__(self, source: ShareLoader, epoch: int, size: int, queue: deque[int]) -> None:
        self._source = source
        self._queue = queue
        self._requests = ChunkRequests(source, epoch, size, queue)
        self._ready: dict[int, Any] = {}
        self._batches = source.batches_of(self._requests)

    def load(self, chunk: int) -> tuple[int, Any]:
        """Number of samples, and the batch.

        Args:
            chunk: Mostly the first of the queue that was not handed out; any other one, such as
                one to be computed again, is asked for next.
        """
        if chunk not in self._ready:
            self._requests.hurry(chunk)
        while chunk not in self._ready:
            batch = next(self._batches, self)
            if batch is self:  # there was nothing to ask for, and its loader has ended
                self._batches = self._source.batches_of(self._requests)
                continue
            self._ready[self._requests.asked.popleft()] = batch
        batch = self._ready.pop(chunk)
        for other in self._ready.keys() - set(self._queue):  # of another worker by now
            del self._ready[other]
            self._requests.forget(other)
        return self._requests.num_samples(chunk), batch
