"""Slows this worker's compute down honestly, to try a mixed cluster on one machine."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Emulation:
    """Holds the compute of a step back; the time held is part of what is measured.

    Either every measured piece of compute is stretched by 1 / `relative_speed`, or the whole step's
    compute is held until `overhead_seconds + seconds_per_sample * x` after its start, which stays
    true when the machine has fewer cores than workers.

    Args:
        relative_speed: 0 < speed <= 1, or None.
        seconds_per_sample: > 0, or None.
        overhead_seconds: >= 0.
    """

    def __init__(
        self,
        *,
        relative_speed: float | None = None,
        seconds_per_sample: float | None = None,
        overhead_seconds: float = 0.0,
    ) -> None:
        self._relative_speed = relative_speed
        self._seconds_per_sample = seconds_per_sample
        self._overhead_seconds = overhead_seconds

    @classmethod
    def of(cls, settings: Mapping[str, float | None] | None) -> Emulation | None:
        """The emulation that a node's settings ask for."""
        if not settings:
            return None
        return cls(
            relative_speed=settings.get("relative_speed"),
            seconds_per_sample=settings.get("seconds_per_sample"),
            overhead_seconds=settings.get("overhead_seconds") or 0.0,
        )

    def stretch(self, since: float) -> None:
        """Sleep until the piece of compute that began at `since` has taken its emulated time.

        Args:
            since: `time.perf_counter()` at its start.
        """
        if self._relative_speed is not None:
            elapsed = time.perf_counter() - since
            time.sleep(elapsed / self._relative_speed - elapsed)

    def hold(self, since: float, num_samples: int) -> None:
        """Sleep until a whole step's compute that began at `since` has taken its emulated time.

        Args:
            since: `time.perf_counter()` at its start.
            num_samples: Samples that it processed; 0 takes no time.
        """
        if self._seconds_per_sample is not None and num_samples:
            deadline = since + self._overhead_seconds + self._seconds_per_sample * num_samples
            time.sleep(max(0.0, deadline - time.perf_counter()))
