"""Replicas that have silently become different are found, and made equal.

A bit that flips in memory, or a script that changes one worker's model, is not seen by any
reduction: from then on this replica's gradients are those of another model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from hetero_hvd.errors import TransientError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.comparison import Described, ReplicaComparison
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.transfer import copy_state

logger = logging.getLogger(__name__)


class Holder(NamedTuple):
    """Whose replica is compared.

    Attributes:
        worker: Who it is.
        arithmetic: See `Described`.
    """

    worker: WorkerId
    arithmetic: str


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


def heal(
    collective: Collective,
    replica: Replica,
    members: Sequence[Holder],
    when: str,
    name: str = "checksums",
) -> tuple[str, bool]:
    """Compare the replicas; copy the right one over the others. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        members: In rank order.
        when: For the log.
        name: Of the operation.

    Returns:
        The checksum of all, and whether something else than rounding was found.

    Raises:
        Interrupted: The rendezvous broke.
        Undecided: Nobody can tell which state is right.
    """
    own = replica.checksum()
    found = [digest.decode() for digest in gather_bytes(collective, own.encode(), name)]
    if len(set(found)) == 1:
        return own, False
    comparison = compare(collective, replica, members, found, range(len(members)))
    right = comparison.right
    if right is None:
        raise Undecided(f"{when} {comparison.in_words(None)}")
    source, wrong = found.index(right), comparison.wrong(right)
    if collective.rank == source and wrong:
        logger.error("%s %s: healed from the majority", when, comparison.in_words(right))
    takers = [rank for rank, digest in enumerate(found) if digest != right]
    copy_state(collective, replica, source, "healing", takers=takers)
    return right, bool(wrong)


def compare(
    collective: Collective,
    replica: Replica,
    members: Sequence[Holder],
    digests: Sequence[str],
    among: Iterable[int],
) -> ReplicaComparison:
    """See in what some replicas differ. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        members: In rank order.
        digests: Of their replicas, in rank order.
        among: Ranks of those whose replicas should be equal.

    Raises:
        Interrupted: The rendezvous broke.
    """
    own = Described(
        *members[collective.rank],
        digest=digests[collective.rank],
        entries=replica.entries(),
        sketches=replica.sketches(),
    )
    payloads = gather_bytes(collective, msgspec.msgpack.encode(own), "entries")
    return ReplicaComparison(
        [msgspec.msgpack.decode(payloads[rank], type=Described) for rank in among]
    )
