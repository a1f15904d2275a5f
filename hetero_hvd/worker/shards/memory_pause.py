"""The workers' memory does not hold the optimizer's state in parts: they wait for others.

It is as below `min_np`, but for who finds it: the driver counts workers, and only these know their
memory. Whoever waits is in a rendezvous with the others, so that they go on together.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.messages import StateDivided, WorkerId
from hetero_hvd.messages.launch import NodeSettings
from hetero_hvd.worker.comm.horovod import Collective, is_elastic
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.session.worker_context import WorkerContext
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.25
"""Between two looks at whether the membership is to change: each is a message between all."""

OTHERS, STOP, OVERDUE = range(3)
"""What each tells the others in such a message, a byte each."""

REMEDY = "add workers or memory, or train a smaller model"


class Members(Protocol):
    """A rendezvous, as far as it matters here."""

    workers: tuple[WorkerId, ...]


class PausedState(Protocol):
    """Whoever waits: this worker's elastic state."""

    @property
    def context(self) -> WorkerContext:
        """This process in the job."""

    @property
    def membership(self) -> Members:
        """The rendezvous under way."""

    @property
    def position(self) -> Position:
        """Where the training stands."""

    def leave_if_due(self) -> None:
        """End this process if it should go whatever the others do."""

    def leave(self, reason: str) -> None:
        """End this process."""


class MemoryPause:
    """From the first rendezvous with too little memory to the next one with enough.

    Args:
        shards: The optimizer's state in parts; None: each worker has all of it.
        state: Of this worker.
        limit_seconds: After which the job ends.
    """

    def __init__(
        self, shards: ShardedOptimizer | None, state: PausedState, limit_seconds: float
    ) -> None:
        self._shards = shards
        self._state = state
        self._limit_seconds = limit_seconds
        self._since_seconds = math.nan

    def is_over(self, keep: Callable[[Collective, NodeSettings], None]) -> bool:
        """Whether the members of a new rendezvous have enough; else others are there to be met.

        Says what was decided of the state, and waits where memory is short; all members call it.

        Args:
            keep: Writes a checkpoint, if that can be.

        Raises:
            Interrupted: The rendezvous broke.
            JobError: It is short, and nobody can come.
            TryAgainError: It has been so for too long.
        """
        if self._shards is None:
            return True
        room = self._shards.head_room
        for words in room.news:
            self._say(f"shard_optimizer: {words}")
        room.news.clear()
        if not room.shortage:
            self._since_seconds = math.nan
            return True
        if not is_elastic():
            raise JobError(f"shard_optimizer: {room.shortage}: {REMEDY}")
        context = self._state.context
        context.reset_done(self._state.membership.workers)
        if math.isnan(self._since_seconds):
            self._since_seconds = time.monotonic()
        limit = f"waiting for others, at most {self._limit_seconds:g} s"
        self._say(f"paused: {room.shortage}; {limit}", is_short=True)
        keep(context.collective, context.settings.node)
        self._wait(room.shortage)
        return False

    def _say(self, words: str, *, is_short: bool = False) -> None:
        context = self._state.context
        if context.collective.rank == 0:
            logger.warning("%s", words)
            step = self._state.position.applied_steps
            context.tell(StateDivided(step=step, words=words, is_short=is_short))

    def _wait(self, shortage: str) -> None:
        """Until others come; ends this process if the job ends."""
        context = self._state.context
        while True:
            self._state.leave_if_due()
            is_overdue = time.monotonic() > self._since_seconds + self._limit_seconds
            own = bytes([context.reset_requested, context.stop_requested, is_overdue])
            told = gather_bytes(context.collective, own, "memory")
            if any(each[STOP] for each in told):
                self._state.leave("the driver ends the job")
            if any(each[OTHERS] for each in told):
                return
            if any(each[OVERDUE] for each in told):
                raise TryAgainError(
                    f"shard_optimizer: {shortage}, and in {self._limit_seconds:g} s nobody has "
                    "come with enough memory: add workers or memory, or raise "
                    "elastic_timeout_seconds"
                )
            time.sleep(ASK_SECONDS)
