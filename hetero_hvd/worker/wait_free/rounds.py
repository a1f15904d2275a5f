"""Wait-free rounds: each worker computes chunks until the round before is reduced, then submits.

Nobody waits for anybody, and nothing has to be known about speeds: who is fast takes more chunks.
A round holds about as many samples as the script's batch; how many exactly is known when it is
reduced, and the step is scaled by that. See `core.data.chunks` for who takes which chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict

from hetero_hvd.core.data.chunks import ChunkQueues, Progress
from hetero_hvd.errors import UserError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.step.in_flight import ExchangeTrigger
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.wait_free.chunk_loader import ChunkLoader
from hetero_hvd.worker.wait_free.round_step import RoundStep


class ChunkRounds:
    """This worker's way through the chunks of an epoch.

    Args:
        loader: The script's.
        step: Computes them, and counts those of the round.
        chunk_size: Samples in a chunk, > 0.
        num_ahead: Rounds that may be under way while one is computed, > 0.
    """

    def __init__(
        self, loader: ShareLoader, step: RoundStep, chunk_size: int, num_ahead: int
    ) -> None:
        self._loader = loader
        self.step = step
        self._size = chunk_size
        self._num_ahead = num_ahead
        self._queues: ChunkQueues | None = None
        self._position = Position()
        self._rank = self._number = 0
        self._under_way: deque[int] = deque()

    def slices(self, state: ElasticState) -> Iterator[Slice]:
        """Chunk by chunk, as long as this membership lasts; an empty one where there is none now.

        Each must have been computed before the next is asked for.

        Raises:
            UserError: The position is not one between chunks.
        """
        position = self._position = state.position
        collective = state.seat.collective
        num_chunks = self._loader.num_chunks(self._size)
        queues = self._queues = ChunkQueues(
            num_chunks=num_chunks,
            num_workers=collective.size,
            chunks_per_round=max(1, self._loader.global_batch_size // self._size),
            num_ahead=self._num_ahead,
            prefetch=state.membership.prefetch_steps,
            progress=self._progress(position),
        )
        self._rank = collective.rank
        self._number = 0
        self._under_way.clear()
        self.step.put_back()  # the script may have left this loop before the round was full
        own = queues.queues[self._rank]
        chunks = ChunkLoader(self._loader, position.epoch, self._size, own)
        while not queues.is_done:
            num_samples, batch = 0, None
            if self.step.num_chunks < self._limit:
                num_samples, batch = chunks.load(own[sum(self._under_way) + self.step.num_chunks])
            total = self._loader.global_batch_size
            yield Slice(self._number, num_samples, total, batch, position.epoch)

    def check_evaluation(self) -> None:
        """Workers are at different places in an epoch: they can meet at its end only.

        Raises:
            UserError: An epoch is under way.
        """
        if self._queues is not None and not self._queues.is_done:
            raise UserError("wait_free: evaluate after the loop over trainer.batches(), not in it")

    def is_full(self, may_launch: Callable[[], bool]) -> bool:
        """Whether this worker's part of the round is to be submitted.

        Args:
            may_launch: Whether the round before is reduced.
        """
        if self.step.num_chunks >= self._limit:
            return True
        target = self._known.target(self._rank)
        return self.step.num_chunks >= target and may_launch()

    def launched(self, num_chunks: int) -> None:
        """The round is submitted, with so many chunks of this worker: the next one begins."""
        self._under_way.append(num_chunks)
        self._number += 1

    def landed(self, counts: tuple[int, ...]) -> None:
        """The oldest round is reduced; the position learns which chunks are done.

        Args:
            counts: What each worker took.
        """
        self._under_way.popleft()
        self._known.landed(counts)
        self._position.chunks = {"size": self._size, **asdict(self._known.progress)}

    @property
    def _known(self) -> ChunkQueues:
        if self._queues is None:
            raise UserError("take batches from trainer.batches()")
        return self._queues

    @property
    def _limit(self) -> int:
        return self._known.limit(self._rank, len(self._under_way))

    def _progress(self, position: Position) -> Progress:
        if not position.chunks:
            done = position.used_samples
            if done % self._size and done < self._loader.num_samples:
                raise UserError(
                    f"wait_free: the epoch stands at sample {done}, between chunks of {self._size}:"
                    " resume without wait_free until the epoch has ended"
                )
            return Progress(frontier=-(-done // self._size))
        known = dict(position.chunks)
        if (size := known.pop("size")) != self._size:
            raise UserError(
                f"wait_free: the epoch was begun in chunks of {size} samples, now they are of "
                f"{self._size}: resume with micro_batch_size={size}"
            )
        return Progress(**known)


class RoundPipeline(Pipeline):
    """Takes chunks until a round is full.

    Args:
        rounds: Which chunks, and what computes and applies them.
        staleness: How many rounds may be under way.
        applied: Called with the loss of each applied round, in order.
    """

    def __init__(
        self, rounds: ChunkRounds, staleness: Staleness, applied: Callable[[float], None]
    ) -> None:
        super().__init__(rounds.step, staleness, applied)
        self._rounds = rounds

    @property
    def varies(self) -> bool:
        """They do: rounds are as large as they become."""
        return True

    def take(self, collective: Collective, urgency: ExchangeTrigger) -> int | None:
        """A chunk is computed: go on with the round, or submit it; see `Pipeline.take`."""
        step, rounds = self._rounds.step, self._rounds
        if step.has_restarted:
            step.has_restarted = False
            return None
        step.chunk_done()
        if not rounds.is_full(lambda: self._may_launch(collective)):
            return None
        num_chunks = step.num_chunks
        num_samples = step.launch(collective, urgency)
        rounds.launched(num_chunks)
        while step.is_due:
            self._land(collective)
        return num_samples

    def _may_launch(self, collective: Collective) -> bool:
        flights = self._step.in_flight
        return len(flights) < max(1, self._staleness.now) or flights[0].is_done(collective)

    def _land(self, collective: Collective) -> None:
        loss = self._rounds.step.land(collective)
        self._rounds.landed(self._rounds.step.counts)
        if self._rounds.step.round_samples:
            self._applied(loss)
