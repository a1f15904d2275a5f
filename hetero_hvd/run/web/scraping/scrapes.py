"""Who scrapes the metrics regularly is to see how a run has ended."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MAX_SCRAPE_SECONDS = 30.0
"""For a slower scraper no run's end is delayed."""

PATIENCE = 1.5
"""In intervals of the scraper."""


class Scrapes:
    """Notes when somebody has scraped. Used in the loop's thread.

    Args:
        max_seconds: The end is delayed no longer.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        *,
        max_seconds: float = PATIENCE * MAX_SCRAPE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_seconds = max_seconds
        self._clock = clock
        self._at_seconds: deque[float] = deque(maxlen=2)
        self._is_seen = asyncio.Event()

    def note(self) -> None:
        """Somebody scrapes."""
        self._at_seconds.append(self._clock())
        self._is_seen.set()

    async def next(self) -> None:
        """Wait until somebody scrapes once more, if that is regular; not for long."""
        self._is_seen.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_seen.wait(), self.seconds_to_next())

    def hurry(self) -> None:
        """Wait no more."""
        self._is_seen.set()

    def seconds_to_next(self) -> float:
        """How long to wait for the next of regular scrapes; 0 where there are none."""
        if len(self._at_seconds) < 2:  # noqa: PLR2004 - an interval has two ends
            return 0.0
        before, last = self._at_seconds
        if last - before > MAX_SCRAPE_SECONDS:
            return 0.0
        seconds = last + PATIENCE * (last - before) - self._clock()
        return min(max(0.0, seconds), self._max_seconds)
