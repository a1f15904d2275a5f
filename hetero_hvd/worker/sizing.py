"""How many samples go through the model at once on this worker."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from hetero_hvd.core.micro_batch_limit import MicroBatchLimit, evenly, smaller
from hetero_hvd.errors import InvariantError
from hetero_hvd.messages import WorkerId

LIMIT_VARIABLE = "HETERO_HVD_MAX_MICRO_BATCH"
"""Set by the driver for a worker that the kernel had killed for want of memory."""


class Sizing:
    """Chooses the size of the micro-batches, step by step.

    Args:
        wanted: What the script asks for, samples; 0 = the whole share.

    Attributes:
        size: Of the micro-batches of the step under way, samples; 0 before the first.
    """

    def __init__(self, wanted: int = 0) -> None:
        self._wanted = wanted
        self._limit = MicroBatchLimit(int(os.environ.get(LIMIT_VARIABLE, "0")))
        self._members: frozenset[WorkerId] = frozenset()
        self._largest_done = 0
        self.size = 0

    @property
    def largest(self) -> int:
        """Samples in a micro-batch at most, as things are; 0 = not limited."""
        return smaller(self._wanted, self._limit.at(time.monotonic()))

    @property
    def is_proven(self) -> bool:
        """Whether a step with micro-batches of this size was done before."""
        return self.size <= self._largest_done

    def enter(self, workers: Collection[WorkerId]) -> None:
        """Take note of the members: when others train together, what failed may be tried again."""
        members = frozenset(workers)
        if self._members and members != self._members:
            self._limit.forgive()
        self._members = members

    def choose(self, share: int) -> int:
        """The size for a step, >= 1, <= share. What the script asked for is taken as it is.

        Args:
            share: Samples of this worker, >= 1.
        """
        limit = self.largest
        self.size = min(share, limit) if limit == self._wanted and limit else evenly(share, limit)
        return self.size

    def fail(self) -> bool:
        """The micro-batches of the step under way do not fit; whether smaller ones can be had."""
        if self.size < 1:
            raise InvariantError("a step that has not begun has no micro-batches")
        if self.size == 1:
            return False
        self._limit.fail(self.size, now_seconds=time.monotonic())
        return True

    def done(self) -> None:
        """The forward and backward passes of a step have ended well."""
        self._largest_done = max(self._largest_done, self.size)
