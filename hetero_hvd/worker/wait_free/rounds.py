"""Wait-free rounds: each worker computes chunks until the round before is reduced, then submits.

Nobody waits for anybody, and nothing has to be known about speeds: who is fast takes more chunks.
A round holds about as many samples as the script's batch; how many exactly is known when it is
reduced, and the step is scaled by that. See `core.data.chunks` for who takes which chunk.

Where a worker is lost the others set aside what they have computed, and submit it again as rounds
of the next membership: whoever is left keeps its chunks, and a round is as large as it became.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256

from hetero_hvd.core.data.chunks import ChunkQueues, ChunksDone
from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.step.training_step import Course, KeptParts
from hetero_hvd.worker.wait_free.chunk_loader import ChunkLoader


class ChunkRounds:
    """This worker's way through the chunks of an epoch.

    Args:
        loader: The script's.
        chunk_size: Samples in a chunk, > 0.
        num_ahead: Rounds that may be under way while one is computed, > 0.

    Attributes:
        num_samples: Samples that this worker has computed in the round begun.
        num_chunks: The same, in chunks.
        goes_on: Whether the next slices keep the division of the epoch, as all have kept their
            parts.
    """

    def __init__(self, loader: ShareLoader, chunk_size: int, num_ahead: int) -> None:
        self._loader = loader
        self._size = chunk_size
        self._num_ahead = num_ahead
        self._queues: ChunkQueues | None = None
        self._position = Position()
        self._chunks: ChunkLoader | None = None
        self.goes_on = False
        self._rank = self._number = self._num_landed = 0
        self._under_way: deque[int] = deque()
        self._aside: deque[int] = deque()
        self.num_samples = self.num_chunks = 0

    def slices(self, course: Course) -> Iterator[Slice]:
        """Chunk by chunk, as long as this membership lasts; an empty one where there is none now.

        Each must have been computed before the next is asked for. Parts that were set aside come
        first: with an empty one of each to be submitted.

        Raises:
            UserError: The position is not one between chunks.
        """
        chunks = self._chunks
        if not self.goes_on or chunks is None:
            chunks = self._begin(course)
        self.goes_on = False
        queues, position = self._known, course.position
        own = queues.queues[self._rank]
        order_code = self._loader.order_code(position.epoch)
        while not queues.is_done:
            num_samples, batch = 0, None
            if not self._aside and self.num_chunks < self._limit:
                num_samples, batch = chunks.load(own[sum(self._under_way) + self.num_chunks])
            total = self._loader.global_batch_size
            yield Slice(
                self._number, num_samples, total, batch, position.epoch, order_code=order_code
            )
        self.release()

    def release(self) -> None:
        """No chunk is left, or none is taken any more: end the loader's processes."""
        self._chunks = None

    def _begin(self, course: Course) -> ChunkLoader:
        """Divide what is left of the epoch anew."""
        position = self._position = course.position
        self._queues = ChunkQueues(
            num_chunks=self._loader.num_chunks(self._size),
            num_workers=course.collective.size,
            chunks_per_round=max(1, self._loader.global_batch_size // self._size),
            num_ahead=self._num_ahead,
            prefetch=course.prefetch_steps,
            progress=self._progress(position),
        )
        self._rank = course.collective.rank
        self._number = self._num_landed = 0
        self._under_way.clear()
        own = self._queues.queues[self._rank]
        self._chunks = ChunkLoader(self._loader, position.epoch, self._size, own)
        return self._chunks

    def check_evaluation(self) -> None:
        """Workers are at different places in an epoch: they can meet at its end only.

        Raises:
            UserError: An epoch is under way.
        """
        if self._queues is not None and not self._queues.is_done:
            raise UserError("wait_free: evaluate after the loop over trainer.batches(), not in it")

    def chunk_done(self, num_samples: int) -> None:
        """A chunk of so many samples is computed; with 0 there was none."""
        self.num_samples += num_samples
        self.num_chunks += num_samples > 0

    def restart(self) -> None:
        """What was computed of the round under way does not count; its chunks come again."""
        self.num_samples = self.num_chunks = 0

    def close(self) -> None:
        """The round that was begun gets no further chunks of this worker: its part is set aside."""
        self._aside.append(self.num_chunks)
        self.restart()

    def set_aside(self) -> None:
        """The rounds under way broke: their parts are set aside, in front of others."""
        self._aside.extendleft(reversed(self._under_way))
        self._under_way.clear()

    def drop(self) -> None:
        """What was set aside does not count; its chunks come again, in another division."""
        self._aside.clear()
        self.goes_on = False

    @property
    def num_to_submit(self) -> int:
        """Chunks of the part that is submitted next."""
        return self._aside[0] if self._aside else self.num_chunks

    @property
    def kept(self) -> KeptParts | None:
        """Where the parts that were set aside belong; None: no chunk is left, so they are empty."""
        if self._queues is None or self._queues.is_done:
            return None
        place = self._position.epoch, self._position.applied_steps, self._size, self._num_landed
        digest = sha256(f"{place} {self._queues.digest}".encode()).hexdigest()
        return KeptParts(digest=digest, rank=self._rank)

    def go_on(self, ranks: Sequence[int]) -> None:
        """Keep the division of the epoch in a membership of which all have kept their parts.

        Args:
            ranks: Which ranks its members have had in the one before, ascending.
        """
        self._known.lose(set(range(len(self._known.queues))) - set(ranks))
        self._rank = ranks.index(self._rank)
        self._number = 0
        self.goes_on = True

    def is_full(self, may_submit: Callable[[], bool]) -> bool:
        """Whether this worker's part of the round is to be submitted.

        Args:
            may_submit: Whether the round before is reduced.
        """
        if self._aside or self.num_chunks >= self._limit:
            return True
        target = self._known.target(self._rank)
        return self.num_chunks >= target and may_submit()

    def submitted(self) -> None:
        """The round is submitted with what this worker has computed: the next one begins."""
        self._under_way.append(self.num_to_submit)
        if self._aside:
            self._aside.popleft()
        self._number += 1
        self.restart()

    def reduced(self, counts: Sequence[int]) -> None:
        """The oldest round is reduced; the position learns which chunks are done.

        Args:
            counts: Chunks that each worker took, in rank order.
        """
        self._under_way.popleft()
        self._known.landed(counts)
        self._num_landed += 1
        self._position.chunks = {"size": self._size, **asdict(self._known.progress)}

    @property
    def _known(self) -> ChunkQueues:
        if self._queues is None:
            raise UserError("take batches from trainer.batches()")
        return self._queues

    @property
    def _limit(self) -> int:
        return self._known.limit(self._rank, len(self._under_way))

    def _progress(self, position: Position) -> ChunksDone:
        if not position.chunks:
            done = position.used_samples
            if done % self._size and done < self._loader.num_samples:
                raise UserError(
                    f"wait_free: the epoch stands at sample {done}, between chunks of {self._size}:"
                    " resume without wait_free until the epoch has ended"
                )
            return ChunksDone(frontier=-(-done // self._size))
        known = dict(position.chunks)
        if (size := known.pop("size")) != self._size:
            raise UserError(
                f"wait_free: the epoch was begun in chunks of {size} samples, now they are of "
                f"{self._size}: resume with micro_batch_size={size}"
            )
        return ChunksDone(**known)
