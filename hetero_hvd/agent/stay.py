"""How long an agent stays where it is, if nobody ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class AgentStay:
    """Knows when an agent has to go, or is of no use any more. Pure but for what it asks.

    Args:
        must_leave: Says why whoever lends this machine wants it back, empty while the agent may
            stay; asked at each look. None: nobody lends it.
        until_idle_seconds: After so long without a worker nobody seems to need the agent; None: it
            waits for ever.

    Attributes:
        reason: Why whoever lends the machine wants it back; empty: he has not said so.
    """

    def __init__(
        self, must_leave: Callable[[], str] | None, until_idle_seconds: float | None
    ) -> None:
        self._must_leave = must_leave
        self._until_idle_seconds = until_idle_seconds
        self._busy_at_seconds: float | None = None
        self.reason = ""

    def is_over(self, *, is_idle: bool, now_seconds: float) -> bool:
        """Whether the agent has to end.

        Args:
            is_idle: Whether no worker runs.
            now_seconds: Monotonic; the first call begins the time without a worker.
        """
        if self._busy_at_seconds is None or not is_idle:
            self._busy_at_seconds = now_seconds
        self.reason = self._must_leave() if self._must_leave is not None else ""
        if self.reason:
            logger.warning("%s: leaving", self.reason)
            return True
        limit_seconds = self._until_idle_seconds
        if limit_seconds is None or now_seconds - self._busy_at_seconds < limit_seconds:
            return False
        logger.warning("no driver has had a worker here for %g s: ending", limit_seconds)
        return True
