"""How long each part of something takes that is done once in a while, and what processor time."""

from __future__ import annotations

import time


class Laps:
    """A watch for the parts that follow one another.

    Attributes:
        parts: Name of each, in their order, to its duration and to this process's processor time
            in it, of all threads; seconds.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The first part begins now."""
        self.parts: dict[str, tuple[float, float]] = {}
        self._at = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """A part ends, and the next one begins. A part that comes again is added to."""
        (began_at, used_before), self._at = self._at, (time.perf_counter(), time.process_time())
        seconds, processor_seconds = self.parts.get(name, (0.0, 0.0))
        ended_at, used = self._at
        self.parts[name] = seconds + ended_at - began_at, processor_seconds + used - used_before
