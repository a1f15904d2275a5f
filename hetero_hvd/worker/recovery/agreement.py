"""Replicas are compared while training goes on; what follows if nobody can tell who is right."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.recovery.last_state import LastState
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.replica_check import Holder, Undecided, heal, heal_parts
from hetero_hvd.worker.recovery.reports import FRESH
from hetero_hvd.worker.shards.members import PartsLost

logger = logging.getLogger(__name__)


class Agreement:
    """What this worker's replica has in common with all others.

    Args:
        replica: This worker's.
        position: Part of it.
        kept: The checkpoints, to which all go back if need be.
        last_state: Is not kept where the state may be wrong.
    """

    def __init__(
        self, replica: Replica, position: Position, kept: Keeping, last_state: LastState
    ) -> None:
        self._replica = replica
        self._position = position
        self._kept = kept
        self._last_state = last_state
        self._step = FRESH
        self._checksum = ""
        self._under_way: Future[str] | None = None

    @property
    def checksum(self) -> str:
        """That all had at the step that this worker is at; empty: it is not known."""
        return self._checksum if self._step == self._position.applied_steps else ""

    def begin(self) -> None:
        """Begin with the checksum of this replica, in a thread: nothing may change it until `take`.

        It is a pass over the state, made while its worker waits for the others of a new rendezvous.
        """
        threads = ThreadPoolExecutor(1)
        self._under_way = threads.submit(self._replica.checksum)
        threads.shutdown(wait=False)

    def take(self) -> str:
        """What was begun, once; else it is made now, as the replica may be another one."""
        found, self._under_way = self._under_way, None
        return self._replica.checksum() if found is None else found.result()

    def reached(self, checksum: str) -> None:
        """All have the same state just now, with this checksum."""
        self._step = self._position.applied_steps
        self._checksum = checksum

    def compare(
        self, collective: Collective, members: Sequence[Holder], when: str, name: str
    ) -> bool:
        """See that the replicas are equal, or make them so.

        Args:
            collective: The way to the others.
            members: All, in rank order.
            when: In words.
            name: Of the operation; that of the training's end is `finish`.

        Returns:
            Whether some replica had to be made equal for something else than rounding.

        Raises:
            Interrupted: A worker is lost.
            JobError: They differ, and no state is held by most.
        """
        try:
            checksum, is_healed = heal(collective, self._replica, members, when, name)
        except Undecided as why:
            self._last_state.is_trusted = False
            if name == "finish":
                self._kept.keep()
            words = self._kept.in_words().encode()
            kept = gather_bytes(collective, words, "kept")[0].decode()
            raise JobError(
                f"{why}, and no state is held by most: a script must change them on all workers "
                f"alike; {kept}"
            ) from why
        self.reached(checksum)
        if (shards := self._kept.cut) is not None:
            is_healed |= heal_parts(collective, shards, members, when)
        return is_healed

    def fall_back(self, collective: Collective, why: Undecided | PartsLost) -> bool:
        """Nobody has a state that is known to be right: go back to the newest checkpoint.

        Args:
            collective: The rendezvous.
            why: In words.

        Returns:
            Whether this worker has one.

        Raises:
            Interrupted: A worker is lost.
            TryAgainError: Nobody has one.
        """
        self._last_state.is_trusted = False
        step, path = self._position.applied_steps, self._kept.load()
        found = gather_bytes(collective, str(path or "").encode(), "fallback")
        if not any(found):
            raise TryAgainError(
                f"after step {step} {_in_words(why)}, and there is no checkpoint: start the job "
                "again"
            )
        if collective.rank == 0:
            logger.error("after step %d %s: all go back to the newest checkpoint", step, why)
        return path is not None


def _in_words(why: Undecided | PartsLost) -> str:
    return f"{why}, no state is held by most" if isinstance(why, Undecided) else str(why)
