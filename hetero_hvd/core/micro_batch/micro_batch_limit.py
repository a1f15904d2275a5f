"""How large a micro-batch may be, after what was seen to be too large."""

from __future__ import annotations

import math

FORGET_SECONDS = 3600.0
"""A size that failed is tried again after so long at the earliest: what else used the memory may
be gone."""


class MicroBatchLimit:
    """Remembers the micro-batch that did not fit into the memory. Pure: the time is an argument.

    After a failure at n samples nothing above n // 2 is proposed until an hour has passed or the
    cluster has changed. What the kernel killed a worker for is remembered for good, as another try
    costs a process and not only a step.

    Args:
        lasting: Samples that are never exceeded, >= 1; 0 = not limited.
    """

    def __init__(self, lasting: int = 0) -> None:
        self._lasting = lasting
        self._failed_size = 0
        self._until_seconds = -math.inf

    def reject(self, size: int, *, now_seconds: float) -> None:
        """A micro-batch of so many samples did not fit, >= 2."""
        self._failed_size = size
        self._until_seconds = now_seconds + FORGET_SECONDS

    def reset(self) -> None:
        """The cluster has changed: try again."""
        self._failed_size = 0

    def at(self, now_seconds: float) -> int:
        """Samples in a micro-batch at most; 0 = not limited."""
        if self._failed_size and now_seconds >= self._until_seconds:
            self.reset()
        return smaller(self._lasting, self._failed_size // 2)


def smaller(*limits: int) -> int:
    """The smallest of some limits, of which 0 stands for none."""
    return min(filter(None, limits), default=0)


def evenly(share: int, limit: int) -> int:
    """Samples in each of the fewest pieces of a share that keep a limit, as equal as can be.

    Args:
        share: Samples, >= 1.
        limit: In a piece at most; 0 = not limited.
    """
    if not limit:
        return share
    return math.ceil(share / math.ceil(share / limit))
