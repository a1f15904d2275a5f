"""When the state of a training is kept on disk, and how it goes on from there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial

import torch

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import CheckpointSettings, NodeSettings
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Order, Position
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.recovery.checkpoints.not_kept import Tell
from hetero_hvd.worker.recovery.checkpoints.parted import PartedCheckpoints
from hetero_hvd.worker.recovery.checkpoints.series import open_checkpoints
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.session.turns import next_number
from hetero_hvd.worker.session.worker_context import WorkerContext
from hetero_hvd.worker.shards.members import HeldShards
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer

logger = logging.getLogger(__name__)


class _Wish(IntEnum):
    """What rank 0 wants of a state in parts."""

    NOT = 0
    WANTED = 1
    NOT_COLLECTED = 2
    """Only if each worker writes its own part: the host has no memory for all of them."""


class Keeping:
    """The checkpoints of one worker's training, if the job wants any.

    Rank 0 writes them; but the best state of an evaluation that it had no part in is written by the
    first worker that had.

    Args:
        replica: What to keep.
        position: Part of it.
        order: Of the samples, as this script wants it.
        sizing: Leaves room for the copies that checkpoints take.
        is_leader: Whether this worker has rank 0 at the moment.
        settings: Where, when and how many; None: the job wants none.
        tell: Called, in the thread that writes, for each checkpoint that is whole or cannot be.
        wants_to_leave: Whether this worker was asked to leave.
        shards: The optimizer's state that is, or may be, in parts; then it is whole only where it
            was collected just now. None: each worker has all of it.

    Attributes:
        shards: As above.
        has_looked: Whether this worker has looked for a checkpoint to begin with, if there may be
            one.

    Raises:
        UserError: The best state is wanted of a state in parts.
    """

    def __init__(
        self,
        replica: Replica,
        position: Position,
        order: Order,
        sizing: MicroBatchSizer,
        is_leader: Callable[[], bool],
        *,
        settings: CheckpointSettings | None,
        tell: Tell = lambda _: None,
        wants_to_leave: Callable[[], bool] = bool,
        shards: ShardedOptimizer | None = None,
    ) -> None:
        if shards is not None and settings is not None and settings.best:
            raise UserError(
                "shard_optimizer: not with checkpoint_best: the best state is written by one "
                "worker, which has a part of it; leave out one of the two"
            )
        self.shards = shards
        if shards is not None:
            shards.wishes.wants_one = lambda: self.cut is not None and self.is_due
            shards.wishes.has_written = lambda: (
                self._parted is not None and self._parted.has_written
            )
            shards.wishes.wants_to_leave = wants_to_leave
            sizing.parts_bytes = shards.memory
        self._replica = replica
        self._position = position
        self._order = order
        self._sizing = sizing
        self._is_leader = is_leader
        self._checkpoints = open_checkpoints(settings, replica, next_number(), tell)
        self._parted = (
            PartedCheckpoints(self._checkpoints, shards)
            if self._checkpoints is not None and shards is not None
            else None
        )
        self._is_proven = self._took_memory = False
        self.has_looked = self._checkpoints is None

    def prepare(self) -> None:
        """What takes its time before this worker trains, and needs nobody else.

        Raises:
            UserError: The state cannot be kept and copied.
            JobError: Which checkpoints there are cannot be seen.
        """
        self.prove()
        if self._checkpoints is not None:
            self._checkpoints.find_series()

    def prove(self) -> None:
        """See that the state can be kept and copied, and leave room for its copies.

        Raises:
            UserError: It cannot.
        """
        num_bytes = self._replica.prove()
        if self._checkpoints is not None:
            self._sizing.reserve(num_bytes * self._checkpoints.max_copies)

    def look(self) -> bool:
        """Look for a checkpoint to begin with, once; whether this worker goes on from one now.

        Raises:
            UserError: It is of another script; says what is different.
        """
        if self.has_looked:
            return False
        self.has_looked = True
        return self.load() is not None

    def load(self) -> str | None:
        """Go on from the newest checkpoint, and tell where it is; None: there is none.

        Raises:
            UserError: It is of another script; says what is different.
        """
        place = None if self._checkpoints is None else self._checkpoints.load_newest()
        if place is not None:
            try:
                self._position.go_on_with(self._order)
            except UserError as error:
                raise UserError(f"{place}: {error}") from error
        return place

    def check_found(self, *, is_found: bool) -> None:
        """All workers have looked for a checkpoint.

        Raises:
            JobError: One was asked for, and none that is there can be read.
        """
        if is_found or self._checkpoints is None:
            return
        if why := self._checkpoints.why_not_resumed():
            raise JobError(why)

    def step_done(self) -> None:
        """After each step: a checkpoint if it is time for one."""
        if not self._is_proven:  # the first step has given the optimizer its state
            self._is_proven = True
            self.prove()
        if self._checkpoints is None:
            return
        is_collected = self.shards is not None and self.shards.is_collected
        if is_collected or (self.cut is None and self.is_due):
            self._checkpoints.save(self._position.applied_steps)
        if not self._is_leader():  # it may have been
            self._checkpoints.needs_no_room()
        if self._checkpoints.takes_memory or self._took_memory:
            self._sizing.forget_peak()  # it was that of the copy
        self._took_memory = self._checkpoints.takes_memory

    def held_parts(self, node: NodeSettings, collective: Collective) -> HeldShards | None:
        """What to tell the others of a state in parts; None: it is not in parts.

        Args:
            node: The most memory that the user allows.
            collective: The rendezvous of now.
        """
        if self.shards is None:
            return None
        if self._parted is not None:
            self._parted.over(collective)
        memory = partial(self._sizing.memory, node)
        return self.shards.held(self._position.applied_steps, memory)

    def tend_parts(self, collective: Collective) -> None:
        """Between two steps: what is due of a state in parts; called by all workers.

        Raises:
            Interrupted: The rendezvous broke.
        """
        shards = self.cut
        if shards is None:
            return
        wishes = shards.wishes
        is_wanted, wishes.is_wanted = wishes.is_wanted, False
        parted = self._parted
        if is_wanted and not (parted and parted.begin(collective, self._position.applied_steps)):
            with shards.collected(collective):
                self.step_done()
        elif parted is not None and wishes.num_written == collective.size:
            parted.finish(collective)
        if wishes.leaving:
            self._make_way(shards, collective)
        elif shards.is_moving:
            shards.move_some(collective)

    def end_membership(self, context: WorkerContext, members: Sequence[WorkerId]) -> None:
        """The driver wants another membership: what only those have who leave goes to others.

        Called by all members, between two steps.

        Args:
            context: For the rendezvous, and what the driver has said.
            members: In rank order.

        Raises:
            Interrupted: The rendezvous broke.
        """
        shards = self.cut
        if shards is None:
            return
        leaving = () if context.client is None else context.client.leaving
        own = bytes(member in leaving for member in members)
        told = gather_bytes(context.collective, own, "shards.leaving")[0]  # rank 0 has heard of it
        shards.wishes.leaving = {rank for rank, leaves in enumerate(told) if leaves}
        if shards.wishes.leaving:
            self._make_way(shards, context.collective)

    def _make_way(self, shards: ShardedOptimizer, collective: Collective) -> None:
        moves = shards.last_moves()
        if moves is None:  # nobody could go on from what is left
            self.keep_parts(collective)
        shards.hand_over(collective, moves or [])

    @property
    def may_leave(self) -> bool:
        """Whether this worker may leave alone: others have all that it holds."""
        shards = self.cut
        return shards is None or shards.may_leave

    def keep_parts(self, collective: Collective) -> None:
        """All are at the end: what `keep` would do, of a state in parts; called by all workers.

        Raises:
            Interrupted: The rendezvous broke.
        """
        self._keep_parts(collective, _Wish.WANTED if self.is_kept else _Wish.NOT, is_last=True)

    def keep_before_pause(self, collective: Collective, node: NodeSettings) -> None:
        """The same where memory is short: rank 0 collects only what its host has room for.

        Args:
            collective: The rendezvous.
            node: The most memory that the user allows.

        Raises:
            Interrupted: The rendezvous broke.
        """
        shards = self.cut
        wish = _Wish.NOT
        if shards is not None and shards.is_unkept and self.is_kept:
            has_room = self._sizing.host_left_bytes(node) > shards.head_room.num_bytes
            wish = _Wish.WANTED if has_room else _Wish.NOT_COLLECTED
        self._keep_parts(collective, wish, is_last=False)

    def _keep_parts(self, collective: Collective, wish: _Wish, *, is_last: bool) -> None:
        """As rank 0 wants it."""
        if self.cut is None:
            return
        applied_steps = self._position.applied_steps
        told = torch.tensor([float(wish if applied_steps > 0 else _Wish.NOT)])
        collective.broadcast(told, 0, "shards.is_kept")
        agreed = _Wish(round(told.item()))
        if agreed is _Wish.NOT:
            return
        if self._parted is not None:
            self._parted.finish(collective)  # what is being written
            if self._parted.begin(collective, applied_steps, is_last=is_last):
                self._parted.finish(collective)
                self.keep()
                return
        if agreed is _Wish.NOT_COLLECTED:
            if collective.rank == 0:
                logger.warning("no checkpoint before the pause: the memory here cannot hold it")
            return
        with self.cut.collected(collective):
            self.keep()

    @property
    def is_kept(self) -> bool:
        """Whether this worker, while it has rank 0, writes checkpoints."""
        return self._checkpoints is not None and self._is_leader()

    @property
    def is_due(self) -> bool:
        """Whether it is time for one, and this worker can write it without waiting."""
        checkpoints = self._checkpoints
        if checkpoints is None or not self._is_leader():
            return False
        if self._parted is not None and self._parted.is_pending:
            return False
        return checkpoints.is_due() and checkpoints.is_ready()

    @property
    def cut(self) -> ShardedOptimizer | None:
        """The state in parts; None: each worker has all of it."""
        shards = self.shards
        return shards if shards is not None and shards.is_cut else None

    @property
    def _is_whole(self) -> bool:
        return self.cut is None or self.cut.is_collected

    def evaluated(self, metrics: Mapping[str, float], *, is_keeper: bool) -> None:
        """Keep the state that has the best result.

        Args:
            metrics: The result.
            is_keeper: Whether it is for this worker to do so: rank 0 may not have taken part.
        """
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.is_best(metrics) and is_keeper:
            checkpoints.save(self._position.applied_steps, metrics)

    @property
    def will_keep(self) -> bool:
        """Whether `keep` takes its time on this worker."""
        is_writing = self._checkpoints is not None and self._checkpoints.is_writing
        return is_writing or self._has_to_begin

    def keep(self) -> None:
        """The last one who could: rank 0 keeps what it has, which nothing changes meanwhile."""
        self.begin(copies=False)
        if self._checkpoints is not None:
            try:
                self._checkpoints.wait()
            except BaseException:  # such as Ctrl-C: after it the script may change the state
                self._checkpoints.wait()
                raise

    def begin(self, *, copies: bool = True) -> None:
        """Rank 0 copies what it has, once nothing else is written; the script goes on meanwhile."""
        if self._parted is not None:
            self._parted.drop()
        if self._checkpoints is not None and self._has_to_begin:
            self._checkpoints.save(self._position.applied_steps, copies=copies)

    @property
    def _has_to_begin(self) -> bool:
        applied_steps = self._position.applied_steps
        return self.is_kept and self._is_whole and applied_steps > 0

    def in_words(self) -> str:
        """What is on disk of this run."""
        return (
            "no checkpoints are written" if self._checkpoints is None else self._checkpoints.kept()
        )
