"""Replicas that have silently become different are found, and healed from the majority.

A bit that flips in memory, or a script that changes one worker's model, is not seen by any
reduction: from then on this replica's gradients are those of another model.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

from hetero_hvd.errors import InvariantError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.collective import Collective
from hetero_hvd.worker.payloads import broadcast_bytes, gather_bytes
from hetero_hvd.worker.replica import Replica

logger = logging.getLogger(__name__)

DEFAULT_CHECK_STEPS = 1000
"""A pass over the state each so many steps costs nothing that could be measured."""


def heal(
    collective: Collective, replica: Replica, workers: tuple[WorkerId, ...], applied_steps: int
) -> bool:
    """At every so many steps, compare the replicas; copy the majority's over the others.

    Called by all members after each step.

    Returns:
        Whether anything was copied.

    Raises:
        Interrupted: The rendezvous broke.
        InvariantError: No state is held by more members than any other.
    """
    every = int(os.environ.get("HETERO_HVD_CHECK_STEPS", DEFAULT_CHECK_STEPS))
    is_due = every > 0 and applied_steps > 0 and applied_steps % every == 0
    if collective.size == 1 or not is_due:
        return False
    found = gather_bytes(collective, replica.checksum().encode(), "checksums")
    ranked = Counter(found).most_common()
    if len(ranked) == 1:
        return False
    right = ranked[0][0]
    wrong = [str(worker) for worker, digest in zip(workers, found, strict=True) if digest != right]
    if ranked[0][1] == ranked[1][1]:
        raise InvariantError(f"the replicas differ at step {applied_steps}, without a majority")
    source = found.index(right)
    mine = collective.rank == source
    if mine:
        logger.error(
            "the replica of %s differs at step %d: healed from the majority",
            ", ".join(wrong),
            applied_steps,
        )
    payload = broadcast_bytes(collective, replica.dump() if mine else b"", source, "healing")
    if found[collective.rank] != right:
        replica.load(payload)
    return True
