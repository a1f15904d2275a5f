"""Checkpoints of a state in parts: each worker writes its part, into a place that all can see.

Rank 0 begins one in the store and tells the others where; who does not find it there has another
disk, and then rank 0 collects the parts instead. Each writes its part beside the training and says
so along with the sums of a step. Once all have, rank 0 adds the rest of the state and a manifest
with the SHA-256 of each part: before that there is no checkpoint, so whoever is lost while it
writes leaves the one before as the newest.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from hetero_hvd.errors import first_line
from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.recovery.checkpoints.background import Begun, Copy
from hetero_hvd.worker.recovery.checkpoints.hashed_file import save_hashed
from hetero_hvd.worker.recovery.checkpoints.not_kept import why_not
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.checkpoints.store import CheckpointPart
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer

logger = logging.getLogger(__name__)


class PartWritten(msgspec.Struct, frozen=True):
    """What a worker tells of its part.

    Attributes:
        part: Of it; None: it could not be written.
        why: Why not.
    """

    part: CheckpointPart | None = None
    why: str = ""


@dataclass
class _BegunCheckpoint:
    """A checkpoint that is begun.

    Attributes:
        place: Where, in the store.
        applied_steps: Optimizer steps applied.
        generation: Of the rendezvous in which all began it.
        is_last: Whether no other one will take its place.
        is_mine: Whether this worker had rank 0, and is to complete it.
        state: All but the parts, if so; None: there was no memory for a copy, which is said.
        copy_seconds: What the copy of that has taken.
        written: By this worker; None: it is still at it.
        thread: Which writes.
    """

    place: str
    applied_steps: int
    generation: int
    is_last: bool
    is_mine: bool
    state: dict[str, Any] | None
    copy_seconds: float
    written: PartWritten | None = None
    thread: threading.Thread | None = None


class PartedCheckpoints:
    """Has each worker write its part; all members of a rendezvous call the same.

    Args:
        checkpoints: This worker's, which rank 0 completes.
        shards: What it holds.
    """

    def __init__(self, checkpoints: Checkpoints, shards: ShardedOptimizer) -> None:
        self._checkpoints = checkpoints
        self._shards = shards
        self._pending: _BegunCheckpoint | None = None
        self._told: bool | None = None

    @property
    def is_pending(self) -> bool:
        """Whether one is begun and not completed."""
        return self._pending is not None

    @property
    def has_written(self) -> bool:
        """Whether this worker has written its part of the one that is begun, or has failed."""
        return self._pending is not None and self._pending.written is not None

    def begin(self, collective: Collective, applied_steps: int, *, is_last: bool = False) -> bool:
        """Begin to write the state of now.

        Args:
            collective: The rendezvous.
            applied_steps: Optimizer steps applied.
            is_last: Whether no other one will take its place.

        Returns:
            Whether all see the place; else nothing is begun, and rank 0 is to write it alone.

        Raises:
            Interrupted: The rendezvous broke.
        """
        is_leader = collective.rank == 0
        begun = self._begun(applied_steps, is_last=is_last) if is_leader else ""
        try:
            place = gather_bytes(collective, begun.encode(), "shards.place")[0].decode()
            if not place:
                return True  # rank 0 has said why
            seen = gather_bytes(collective, b"seen" if self._sees(place) else b"", "shards.seen")
        except Interrupted:
            self._give_up(begun)
            raise
        if is_leader:
            self._tell(seen)
        if not all(seen):
            self._give_up(begun)
            return False
        state = None
        if is_leader:  # at the end nothing changes the state while it is written
            state = self._checkpoints.copied(applied_steps, copies=not is_last)
        generation, seconds = collective.generation, self._checkpoints.copy_seconds
        pending = _BegunCheckpoint(
            place, applied_steps, generation, is_last, is_leader, state, seconds
        )
        self._pending = pending
        self._start(pending, collective.rank)
        return True

    def _give_up(self, begun: str) -> None:
        if begun:
            self._checkpoints.store.give_up(begun)

    def _begun(self, applied_steps: int, *, is_last: bool) -> str:
        """Where; empty: nowhere, which is said."""
        self._checkpoints.tried()
        name, series = self._checkpoints.names_of(applied_steps)
        try:
            return self._checkpoints.store.begin(name, series=series)
        except OSError as error:
            self._checkpoints.complain(applied_steps, first_line(error), is_last=is_last)
            return ""

    def _sees(self, place: str) -> bool:
        try:
            return self._checkpoints.store.has_begun(place)
        except OSError:
            return False

    def _tell(self, seen: list[bytes]) -> None:
        """Say who writes the checkpoints, when that is first known or has changed."""
        if self._told is all(seen):
            return
        self._told = all(seen)
        if self._told:
            logger.info("shard_optimizer: each worker writes its part of the checkpoints")
            return
        logger.warning(
            "shard_optimizer: %d of %d workers do not find in the place of the checkpoints what "
            "rank 0 has put there, so rank 0 collects the optimizer's state in its host's memory "
            "and writes it alone: give all nodes one file system, or checkpoint_url",
            sum(not each for each in seen),
            len(seen),
        )

    def _start(self, pending: _BegunCheckpoint, rank: int) -> None:
        try:
            part = self._shards.own_part(rank)
        except (MemoryError, RuntimeError) as error:  # RuntimeError comes from torch
            pending.written = PartWritten(why=first_line(error))
            return
        thread = threading.Thread(
            target=self._write, args=(pending, part, f"part-{rank:05d}.pt"), name="part"
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._write(pending, part, f"part-{rank:05d}.pt")
        else:
            pending.thread = thread

    def _write(self, pending: _BegunCheckpoint, part: dict[str, Any], name: str) -> None:
        def write(file: BinaryIO) -> CheckpointPart:
            hashed = save_hashed(part, file, self._checkpoints.beside)
            return CheckpointPart(
                name=name, sha256=hashed.digest.hexdigest(), num_bytes=hashed.num_bytes
            )

        store = self._checkpoints.store
        try:
            pending.written = PartWritten(part=store.put_part(pending.place, name, write))
        except Exception as error:  # noqa: BLE001 - whatever it is, this part is not kept
            pending.written = PartWritten(why=why_not(error, part, store.written_in()))

    def finish(self, collective: Collective) -> None:
        """Complete what is begun, once all have written, or wait for that.

        Raises:
            Interrupted: The rendezvous broke.
        """
        pending = self._pending
        if pending is None:
            return
        if pending.thread is not None:
            with self._checkpoints.beside.hurried():
                pending.thread.join()
        own = pending.written or PartWritten(why="the thread that writes has ended")
        answers = gather_bytes(collective, msgspec.msgpack.encode(own), "shards.written")
        self._pending = None
        if not pending.is_mine:
            return
        written = [msgspec.msgpack.decode(each, type=PartWritten) for each in answers]
        parts = tuple(each.part for each in written if each.part is not None)
        if len(parts) < len(written):
            why = "; ".join(each.why for each in written if each.part is None)
            self._checkpoints.complain(
                pending.applied_steps, f"a part of it is not: {why}", is_last=pending.is_last
            )
        if len(parts) < len(written) or pending.state is None:
            self._checkpoints.store.give_up(pending.place)
            return
        begun = Begun(pending.place, parts)
        steps, seconds = pending.applied_steps, pending.copy_seconds
        copy = Copy(pending.state, steps, {}, begun, pending.is_last, seconds)
        self._checkpoints.put(copy)

    def drop(self) -> None:
        """This worker takes no more steps: nobody will complete what it has begun."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.is_mine:
            self._give_up(pending.place)

    def over(self, collective: Collective) -> None:
        """What was begun in an earlier rendezvous is never completed: its parts belong together.

        Args:
            collective: The rendezvous of now.
        """
        pending = self._pending
        if pending is None or pending.generation == collective.generation:
            return
        self._pending = None
        if not pending.is_mine and collective.rank:
            return
        logger.warning(
            "the checkpoint of step %d is given up, as the workers have changed while they wrote "
            "its parts: the one before counts",
            pending.applied_steps,
        )
        give_up = self._checkpoints.store.give_up
        threading.Thread(target=give_up, args=(pending.place,), name="part").start()
