"""How long a worker has to end when it is asked to: it finishes the step under way first."""

from __future__ import annotations

from collections import deque

from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.driver.workers.worker_process import GRACE_SECONDS
from hetero_hvd.messages import StepsTimed

RECENT_EXCHANGES = 8
STEPS = 2.0
"""A step may take as long as that compared with the recent ones."""

CHANGE_RATIO = 0.25
"""Smaller changes are not worth telling."""

WRITE_SECONDS = 600.0
"""For the worker that keeps the last state, which says so."""


class Grace:
    """Follows the duration of the steps.

    Args:
        slots: Whose supervisors are told.
    """

    def __init__(self, slots: WorkerPool) -> None:
        self._slots = slots
        self._longest: deque[float] = deque(maxlen=RECENT_EXCHANGES)

    def observe(self, _at_unix_seconds: float, event: object) -> None:
        """Called with everything that happens."""
        if not isinstance(event, StepsTimed):
            return
        self._longest.append(max((row.step_seconds for row in event.timings), default=0.0))
        seconds, known = GRACE_SECONDS + STEPS * max(self._longest), self._slots.grace_seconds
        if abs(seconds - known) > CHANGE_RATIO * known:
            self._slots.allow(seconds)
