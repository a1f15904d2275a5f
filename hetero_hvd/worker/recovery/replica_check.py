"""Replicas that have silently become different are found, and healed from the majority.

A bit that flips in memory, or a script that changes one worker's model, is not seen by any
reduction: from then on this replica's gradients are those of another model.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from hetero_hvd.errors import TransientError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.transfer import copy_state

logger = logging.getLogger(__name__)

MAX_NAMED = 3
"""Entries that are named; the others are counted."""


class Undecided(TransientError):  # noqa: N818 - control flow
    """Replicas differ, and nobody can tell which is right; the message says in what they differ."""


def is_check_due(position: Position, every_steps: int) -> bool:
    """Whether the replicas are to be compared after this step.

    Each so many steps, and when the first, second, fourth, ... epoch is over: what a script does
    wrongly shows early. A pass over the state each 1000 steps costs nothing that could be measured.

    Args:
        position: Where the training is.
        every_steps: Steps between two comparisons, >= 0; 0: there are none.
    """
    epoch = position.epoch
    is_early = position.step_in_epoch == 1 and epoch > 0 and epoch & (epoch - 1) == 0
    steps = position.applied_steps
    return every_steps > 0 and steps > 0 and (is_early or steps % every_steps == 0)


def majority(digests: Iterable[str]) -> str | None:
    """What more members hold than anything else; None: two states are held by as many."""
    ranked = Counter(digests).most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return None
    return ranked[0][0]


def heal(
    collective: Collective,
    replica: Replica,
    workers: Sequence[WorkerId],
    when: str,
    name: str = "checksums",
) -> tuple[str, bool]:
    """Compare the replicas; copy the majority's over the others. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        workers: In rank order.
        when: For the log.
        name: Of the operation.

    Returns:
        The checksum of all, and whether anything was copied.

    Raises:
        Interrupted: The rendezvous broke.
        Undecided: No state is held by more members than any other.
    """
    own = replica.checksum()
    found = [digest.decode() for digest in gather_bytes(collective, own.encode(), name)]
    right = majority(found)
    if len(set(found)) == 1 and right is not None:
        return right, False
    everybody = range(len(workers))
    words = differences(collective, replica, workers, found, right, among=everybody)
    if right is None:
        raise Undecided(f"{when} {words}")
    source = found.index(right)
    if collective.rank == source:
        logger.error("%s %s: healed from the majority", when, words)
    takers = [rank for rank, digest in enumerate(found) if digest != right]
    copy_state(collective, replica, source, "healing", takers=takers)
    return right, True


def differences(
    collective: Collective,
    replica: Replica,
    workers: Sequence[WorkerId],
    digests: Sequence[str],
    right: str | None,
    *,
    among: Sequence[int],
) -> str:
    """Whose replicas differ, and in what, in words. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        workers: In rank order.
        digests: Of their replicas, in rank order.
        right: The digest of the state that is right; None if that cannot be told.
        among: Ranks of those whose replicas should be equal.

    Raises:
        Interrupted: The rendezvous broke.
    """
    payloads = gather_bytes(collective, msgspec.msgpack.encode(replica.entries()), "entries")
    entries = [msgspec.msgpack.decode(payload, type=dict[str, str]) for payload in payloads]
    places = {place: None for rank in among for place in entries[rank]}
    unequal = [p for p in places if len({entries[rank].get(p) for rank in among}) > 1]
    told = ", ".join(unequal[:MAX_NAMED])
    if len(unequal) > MAX_NAMED:
        told += f" and {len(unequal) - MAX_NAMED} more"
    wrong = [str(workers[rank]) for rank in among if right is not None and digests[rank] != right]
    if wrong:
        verb, noun = ("differ", "replicas") if len(wrong) > 1 else ("differs", "replica")
        return f"the {noun} of {', '.join(wrong)} {verb} in {told}"
    return f"the replicas of {', '.join(str(workers[rank]) for rank in among)} differ in {told}"
