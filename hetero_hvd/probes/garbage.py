"""For how long Python's garbage collection has stopped this process."""

from __future__ import annotations

import gc
import time


class GarbageMeter:
    """Adds up the time of each collection, whichever thread it happens in: all of them stand still.

    A callback costs less than a microsecond, which a collection takes many times.
    """

    def __init__(self) -> None:
        self._began_at = self._seconds = 0.0
        gc.callbacks.append(self._called)

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """Measure no more."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began_at = time.perf_counter()
        else:
            self._seconds += time.perf_counter() - self._began_at
