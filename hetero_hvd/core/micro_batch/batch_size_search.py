"""Finds the size of micro-batches beyond which a worker gains nothing, by doubling."""

from __future__ import annotations

import math

GAIN_RATIO = 0.05
"""Time per sample that a larger size must save to be worth its memory."""

STEPS, DROPPED = 3, 1
"""Measured at each size, of which the fastest counts; before them, the first is for warming up."""

FIRST_PART = 16
"""The first size is this part of the share: small enough to be safe, not so small as to last."""

FEWEST_RATIO = 1.25
"""A size that is larger by less is not worth trying."""

LAST_TRIES = 2
"""Doublings without a gain before the search ends: one alone may have been noise."""


class KneeSearch:
    """Grows a size as long as the time per sample falls. Pure.

    The size that is settled on is the smallest whose time per sample is within `GAIN_RATIO` of the
    best. Until then a limit (of the share, or of the memory) merely halts the growth.

    Attributes:
        size: Samples, to be used now; 0 before the first `grow`.
        is_settled: Whether the knee is found.
    """

    def __init__(self) -> None:
        self.size = 0
        self.is_settled = False
        self._seconds: dict[int, float] = {}
        self._num_seen = 0

    def grow(self, share: int, limit: int) -> int:
        """The size for the next step; larger than before if the one before is known.

        Args:
            share: Samples of the worker in the step, >= 1.
            limit: Samples that are never exceeded; 0 = none.
        """
        most = min(share, limit or share)
        if not self.size:
            self.size = max(1, most // FIRST_PART)
        if not self.is_settled and self._num_seen >= STEPS + DROPPED:
            self._judge(most)
        return min(self.size, most)

    def observe(self, seconds_per_sample: float) -> None:
        """The forward and backward passes of a step at this size took so long, seconds, > 0."""
        self._num_seen += 1
        if self._num_seen > DROPPED and not self.is_settled:
            known = self._seconds.get(self.size, math.inf)
            self._seconds[self.size] = min(known, seconds_per_sample)

    def reject(self, size: int) -> None:
        """Micro-batches of this size do not fit: what is known of smaller ones decides."""
        self._seconds = {known: s for known, s in self._seconds.items() if known < size}
        self.size = min(self.size, max(self._seconds, default=max(1, size // 2)))
        self._num_seen = 0

    def _judge(self, most: int) -> None:
        best = min(self._seconds.values())
        good = min(size for size, s in self._seconds.items() if s * (1 - GAIN_RATIO) <= best)
        if sum(size > good for size in self._seconds) >= LAST_TRIES:
            self.size = good
            self.is_settled = True
            return
        wider = min(2 * self.size, most)
        if wider >= FEWEST_RATIO * self.size:
            self.size = wider
            self._num_seen = 0
