"""For how long a program leaves its devices alone: its GPUs, or else its processors."""

from __future__ import annotations

BUSY_PROCESSORS = 0.05
"""What a program may use that waits for people, such as a notebook's server."""


class Idleness:
    """Pure: times are arguments, of one monotonic clock.

    Args:
        has_gpu: Whether only what it does there counts; until that is told, it counts as busy.
        now_seconds: At its start.
    """

    def __init__(self, *, has_gpu: bool, now_seconds: float) -> None:
        self._has_gpu = has_gpu
        self._busy_at_seconds = now_seconds
        self._processor: tuple[float, float] | None = None

    def processor(self, all_seconds: float, now_seconds: float) -> None:
        """Processor time that it has used by now, with all that it has started.

        What has ended meanwhile has taken its time with it: that is work, too.
        """
        before = self._processor
        self._processor = all_seconds, now_seconds
        if before is None or self._has_gpu or now_seconds <= before[1]:
            return
        used = (all_seconds - before[0]) / (now_seconds - before[1])
        if not 0 <= used < BUSY_PROCESSORS:
            self._busy_at_seconds = now_seconds

    def gpu(self, use_ratio: float, now_seconds: float) -> None:
        """Part of the last second in which one of its GPUs computed; NaN: not told."""
        if use_ratio != 0:
            self._busy_at_seconds = now_seconds

    def seconds(self, now_seconds: float) -> float:
        """For so long by now."""
        return max(0.0, now_seconds - self._busy_at_seconds)
