"""How long each part of something takes that is done once in a while, and what processor time."""

from __future__ import annotations

import time


class Laps:
    """A watch for the parts that follow one another.

    Attributes:
        seconds: Name of each part, in their order, to its duration.
        processor_seconds: The same of this process's processor time, of all its threads.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The first part begins now."""
        self.seconds: dict[str, float] = {}
        self.processor_seconds: dict[str, float] = {}
        self._at = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """A part ends, and the next one begins. A part that comes again is added to."""
        before, self._at = self._at, (time.perf_counter(), time.process_time())
        times = zip((self.seconds, self.processor_seconds), before, self._at, strict=True)
        for found, began_at, ended_at in times:
            found[name] = found.get(name, 0.0) + ended_at - began_at
