"""How much memory a micro-batch needs, learnt from measured peaks, and the largest that fits."""

from __future__ import annotations

import math

HEAD_ROOM_RATIO = 0.1
"""Of the limit, left free: peaks vary with the data, and allocators do not pack perfectly."""

FEWEST_RATIO = 1.25
"""Sizes that differ by less do not tell the slope."""

STEADY_RATIO = 0.1
"""The cap is kept while what is measured would change it by less."""


LEAST_SLOPE = 1.0
"""Bytes of a sample: less is what rounding leaves of equal peaks, and no limit."""


class MemoryModel:
    """peak_bytes(x) = m0 + m1 * x for micro-batches of x samples. Pure.

    The line is fitted by least squares and then raised to the highest measured peak above it. While
    only one size is known, all that was added since before the first forward pass is taken to grow
    with the size: too much for larger ones, so that growth is careful.

    Attributes:
        idle_bytes: Memory in use before the first forward pass; NaN: not known yet.
    """

    def __init__(self) -> None:
        self.idle_bytes = math.nan
        self._peaks: dict[int, float] = {}
        self._cap = 0

    def start(self, idle_bytes: float) -> None:
        """Memory in use before the first forward pass."""
        self.idle_bytes = idle_bytes

    def observe(self, size: int, peak_bytes: float) -> None:
        """A peak that was measured at a size that fits, samples, >= 1."""
        self._peaks[size] = max(peak_bytes, self._peaks.get(size, 0.0))

    def line(self) -> tuple[float, float] | None:
        """(m0, m1), bytes and bytes per sample, both >= 0; None before anything was measured."""
        if not self._peaks or math.isnan(self.idle_bytes):
            return None
        slope = max(0.0, self._slope())
        return max(0.0, *(peak - slope * size for size, peak in self._peaks.items())), slope

    def cap(self, limit_bytes: float) -> int:
        """Largest micro-batch that leaves the head room, samples; 0 = not limited, as far as known.

        Where even the smallest would not leave it, what has worked stays: less would not help.

        Args:
            limit_bytes: The most that the process or the device can have.
        """
        line = self.line()
        if line is None or not math.isfinite(limit_bytes):
            return 0
        (base, slope), allowed = line, limit_bytes * (1 - HEAD_ROOM_RATIO)
        if slope < LEAST_SLOPE:
            self._cap = 0
        elif base + slope > allowed:
            self._cap = max(self._peaks)
        else:
            found = int((allowed - base) / slope)
            if not self._cap or abs(found - self._cap) >= STEADY_RATIO * self._cap:
                self._cap = found
        return self._cap

    def _slope(self) -> float:
        smallest, largest = min(self._peaks), max(self._peaks)
        if largest < FEWEST_RATIO * smallest:
            return (max(self._peaks.values()) - self.idle_bytes) / largest
        centre = sum(self._peaks) / len(self._peaks)
        level = sum(self._peaks.values()) / len(self._peaks)
        spread = sum((size - centre) ** 2 for size in self._peaks)
        both = sum((size - centre) * (peak - level) for size, peak in self._peaks.items())
        return both / spread
