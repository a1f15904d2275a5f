"""Which chunks of an epoch each worker takes in wait-free rounds.

A chunk is a fixed number of consecutive samples of the epoch's order. Each worker has a queue of
chunks of its own, and takes as many of them in a round as it gets done before the reduction of the
round before is back: nobody waits, and no speed model is needed. How many each has taken is known
to all once the round is reduced, so all workers keep the same queues; whoever was slow gives back
what it does not need. (Rounds: Li et al., ACCO: Accumulate While You Communicate for
Communication-Overlapped Sharded LLM Training, 2024; fixed pieces of work that idle workers take:
Ryabinin & Gusev, Towards Crowdsourced Training of Large Neural Networks, NeurIPS 2020.)

With rounds under way, what a worker has taken in them is not known yet. So each round has a limit
for each worker, and the first chunks of a queue, as many as these limits add up to, are never taken
from it. That holds where a worker is lost, too: what the others have computed stays theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from hetero_hvd.core.data import shards

REMEMBERED_ROUNDS = 4
"""Rounds whose counts say what a worker takes in the next."""


@dataclass(kw_only=True)
class ChunksDone:
    """Which chunks of an epoch are done; equal on all workers after each round.

    Attributes:
        frontier: Chunks from this one on were given to nobody yet.
        returned: Chunks before it that are not done, ascending.
    """

    frontier: int = 0
    returned: list[int] = field(default_factory=list)


class ChunkQueues:
    """The queues of all workers, as each of them knows them.

    Args:
        num_chunks: Of the epoch.
        num_workers: Members, > 0.
        chunks_per_round: How many a round should have, all workers together, > 0.
        num_ahead: Rounds that may be under way while one is computed, >= 0.
        prefetch: Chunks that a worker may load before it may take them, >= 0.
        progress: Where the epoch stands.

    Attributes:
        queues: In rank order; each worker takes its own from the front.
    """

    def __init__(
        self,
        *,
        num_chunks: int,
        num_workers: int,
        chunks_per_round: int,
        num_ahead: int,
        prefetch: int = 0,
        progress: ChunksDone | None = None,
    ) -> None:
        progress = progress or ChunksDone()
        self._num_chunks = num_chunks
        self._per_round = chunks_per_round
        self._prefetch = prefetch
        self._frontier = progress.frontier
        self._returned = deque(progress.returned)
        self.queues: list[deque[int]] = [deque() for _ in range(num_workers)]
        self._counts: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED_ROUNDS)
        self._limits: deque[list[int]] = deque()
        for _ in range(num_ahead + 1):
            self._open()

    @property
    def progress(self) -> ChunksDone:
        """Where the epoch stands, without the rounds under way."""
        rest = sorted([*self._returned, *(chunk for queue in self.queues for chunk in queue)])
        return ChunksDone(frontier=self._frontier, returned=rest)

    @property
    def digest(self) -> str:
        """Of all that these queues are and will become; equal where they are the same."""
        sizes = self._num_chunks, self._per_round, self._prefetch, self._frontier
        chunks = [list(each) for each in (self._returned, *self.queues)]
        rounds = list(self._counts), list(self._limits)
        return sha256(repr((sizes, chunks, rounds)).encode()).hexdigest()

    @property
    def is_done(self) -> bool:
        """Whether no chunk is left; rounds under way are empty then."""
        return self._num_left == 0 and not any(self.queues)

    def limit(self, rank: int, place: int) -> int:
        """The most that a worker may take in a round.

        Args:
            rank: Which worker.
            place: Rounds under way before that one, 0 to `num_ahead`.
        """
        return self._limits[place][rank]

    def target(self, rank: int) -> int:
        """What a worker should take at least, for a round as large as it should be.

        It is this worker's part of the last rounds; 1 before there are any.
        """
        if not self._counts:
            return 1
        own = sum(counts[rank] for counts in self._counts)
        whole = sum(map(sum, self._counts))
        return max(1, self._per_round * own // whole)

    def landed(self, counts: Sequence[int]) -> None:
        """The oldest round under way is reduced.

        Args:
            counts: What each worker has taken, in rank order.

        Raises:
            ValueError: More than it might.
        """
        limits = self._limits.popleft()
        if any(count > limit for count, limit in zip(counts, limits, strict=True)):
            raise ValueError(f"counts {tuple(counts)}: must be at most {limits}")
        for queue, count in zip(self.queues, counts, strict=True):
            for _ in range(count):
                queue.popleft()
        if any(counts):
            self._counts.append(tuple(counts))
        self._open()

    def lose(self, ranks: Collection[int]) -> None:
        """Go on without some workers: what was theirs is handed out again.

        All others keep their queues and limits, so that a count in a round under way still means
        the same chunks, and each chunk is in one part. They are ranked anew in their order.

        Args:
            ranks: Those who are gone.
        """
        left = [rank for rank in range(len(self.queues)) if rank not in ranks]
        gone = [chunk for rank in ranks for chunk in self.queues[rank]]
        self._returned = deque(sorted([*self._returned, *gone]))
        self.queues = [self.queues[rank] for rank in left]
        self._limits = deque([limits[rank] for rank in left] for limits in self._limits)
        counts = (tuple(counts[rank] for rank in left) for counts in self._counts)
        self._counts = deque(filter(any, counts), maxlen=REMEMBERED_ROUNDS)

    @property
    def _num_left(self) -> int:
        return len(self._returned) + self._num_chunks - self._frontier

    def _wish(self, rank: int) -> int:
        """Twice what it took lately, and one: it may have become faster."""
        if not self._counts:
            return self._per_round
        return 2 * max([self.target(rank), *(counts[rank] for counts in self._counts)]) + 1

    def _open(self) -> None:
        """Give each worker a limit for one more round, and the chunks for it."""
        ranks = range(len(self.queues))
        bound = [sum(limits[rank] for limits in self._limits) for rank in ranks]
        wishes = [self._wish(rank) for rank in ranks]
        for rank, queue in enumerate(self.queues):
            while len(queue) > bound[rank] + wishes[rank] + self._prefetch:
                self._returned.append(queue.pop())
        self._returned = deque(sorted(self._returned))
        missing = [
            max(0, b + w - len(q)) for b, w, q in zip(bound, wishes, self.queues, strict=True)
        ]
        if sum(missing) > self._num_left:
            self._collect(bound)
            missing = list(shards.divide(min(self._num_left, sum(wishes)), wishes))
        for queue, num in zip(self.queues, missing, strict=True):
            queue.extend(self._next() for _ in range(num))
        limits = [min(w, len(q) - b) for w, q, b in zip(wishes, self.queues, bound, strict=True)]
        self._limits.append(limits)
        for rank, queue in enumerate(self.queues):
            ahead = min(self._num_left, bound[rank] + limits[rank] + self._prefetch - len(queue))
            queue.extend(self._next() for _ in range(ahead))

    def _collect(self, bound: Sequence[int]) -> None:
        """The epoch ends: all that nobody may have taken comes together to be divided."""
        for queue, num in zip(self.queues, bound, strict=True):
            while len(queue) > num:
                self._returned.append(queue.pop())
        self._returned = deque(sorted(self._returned))

    def _next(self) -> int:
        if self._returned:
            return self._returned.popleft()
        self._frontier += 1
        return self._frontier - 1
