"""The history of a run as it happens: one stream for all who act on it, record or show it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from hetero_hvd.core.redaction import Redaction
from hetero_hvd.core.step_table import Observed, StepTables
from hetero_hvd.messages import Event
from hetero_hvd.run.tolerance import Tolerance

logger = logging.getLogger(__name__)

Observer = Callable[[float, Observed], None]
"""Called with the time of an event, seconds since 1970, and the event. Must not block."""


def steady_time() -> Callable[[], float]:
    """A clock in seconds since 1970 that nobody sets: it is right now, and goes on from there.

    So what is between two events of a run is as long as it was, whatever is done to the system's
    clock meanwhile. Time in which the machine was suspended counts.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset_seconds = time.time() - time.clock_gettime(clock)
    return lambda: offset_seconds + time.clock_gettime(clock)


class EventBus:
    """Hands every event to all observers, in order, and after each exchange its table.

    What an observer publishes itself is handed out when all have heard of what comes before. Used
    in the loop's thread.

    Args:
        say: Tells people of an observer that has failed.

    Attributes:
        tolerance: Counts what has failed.
        redaction: Of all events: no secret comes to who records or shows them.
    """

    def __init__(self, say: Callable[[str], None] = logger.warning) -> None:
        self.tolerance = Tolerance(say)
        self._observers: list[tuple[str, Observer]] = []
        self._tables = StepTables()
        self._waiting: deque[tuple[float, Event]] = deque()
        self._is_handing_out = False
        self._now = steady_time()
        self.redaction = Redaction()

    def subscribe(self, observer: Observer, what: str) -> None:
        """Hand it every event from now on.

        Args:
            observer: Called with each.
            what: What has failed if it raises, which does no harm to the run; empty: the run cannot
                go on without it, and whoever publishes gets the error.
        """
        self._observers.append((what, observer))

    def publish(self, event: Event) -> None:
        """Hand an event to all."""
        self._waiting.append((self._now(), self.redaction.event(event)))
        if self._is_handing_out:
            return
        self._is_handing_out = True
        try:
            while self._waiting:
                at_unix_seconds, event = self._waiting.popleft()
                self._hand_out(at_unix_seconds, event)
                table = None
                with self.tolerance.watching("the tables of the steps"):
                    table = self._tables.observe(event)
                if table is not None:
                    self._hand_out(at_unix_seconds, table)
        finally:
            self._is_handing_out = False

    def _hand_out(self, at_unix_seconds: float, event: Observed) -> None:
        for what, observer in tuple(self._observers):
            if what:
                with self.tolerance.watching(what):
                    observer(at_unix_seconds, event)
            else:
                observer(at_unix_seconds, event)
