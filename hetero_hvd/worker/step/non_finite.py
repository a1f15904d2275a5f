"""Steps whose loss or gradients are not finite: skipped by all alike, and the culprit is named.

One NaN in one worker's gradients would reach every replica through the sum. The reduced numbers are
the same bits everywhere, so all come to the same verdict without asking; only then they ask who.
"""

from __future__ import annotations

import logging

from hetero_hvd.errors import JobError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.session.launch_settings import read_launch_settings

logger = logging.getLogger(__name__)

MAX_IN_A_ROW = 10
"""So many steps without a finite gradient are no accident any more."""


class NonFiniteGuard:
    """Counts the steps that had to be skipped.

    Attributes:
        num_skipped: Since the start of this process.
    """

    def __init__(self) -> None:
        self.num_skipped = 0
        self._in_a_row = 0

    def step_is_good(self) -> None:
        """The numbers of a step are finite."""
        self._in_a_row = 0

    def guilty(self, collective: Collective, *, is_mine: bool) -> str:
        """Names of the workers whose own numbers are not finite, the same on all workers.

        Args:
            collective: The rendezvous.
            is_mine: Whether this worker's own loss or gradients were not finite.

        Raises:
            Interrupted: The rendezvous broke.
        """
        name = read_launch_settings().name(collective.rank) if is_mine else ""
        found = [text.decode() for text in gather_bytes(collective, name.encode(), "bad numbers")]
        return ", ".join(filter(None, found))

    def step_is_bad(self, collective: Collective, guilty: str) -> None:
        """A step is skipped on all workers alike.

        Args:
            collective: The rendezvous.
            guilty: As above.

        Raises:
            JobError: Too many such steps in a row.
        """
        why = f"loss or gradients of {guilty} were" if guilty else "the summed gradients were"
        self.num_skipped += 1
        self._in_a_row += 1
        if self._in_a_row > MAX_IN_A_ROW:
            raise JobError(f"{self._in_a_row} steps in a row without a result: {why} not finite")
        if collective.rank == 0:
            logger.warning("a step is skipped on all workers: %s not finite", why)
