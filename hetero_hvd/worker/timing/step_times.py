"""What this worker's steps took since the last exchange, and whether that has changed."""

from __future__ import annotations

import time

from hetero_hvd.core.balance.pace import SpeedChangeDetector
from hetero_hvd.messages import StepTiming
from hetero_hvd.worker.timing.timing_exchange import TimingWindow


class StepTimes:
    """The timings of one worker.

    Args:
        shares_vary: See `TimingWindow`.

    Attributes:
        has_changed: Whether its speed is another one since a few steps.
        ended_at: End of the last step, `time.perf_counter`.
    """

    def __init__(self, *, shares_vary: bool = False) -> None:
        self._shares_vary = shares_vary
        self._window = TimingWindow(shares_vary=shares_vary)
        self._hurry = SpeedChangeDetector()
        self.has_changed = self._is_another = False
        self.ended_at = time.perf_counter()

    def restart(self) -> None:
        """The next step begins now: what was done since the last one is no part of it."""
        self.ended_at = time.perf_counter()

    def forget(self) -> None:
        """What was before says nothing any more."""
        self._window = TimingWindow(shares_vary=self._shares_vary)

    def look(
        self, share: int, own_seconds: float, evaluation_seconds: float, *, planned: int
    ) -> None:
        """Look for a change of speed.

        A step after an evaluation is worth an exchange at once, but the worker is the same.

        Args:
            share: Samples of this worker in the step.
            own_seconds: Its own time in it: all but the waits for others.
            evaluation_seconds: The part of it that evaluations took.
            planned: Its samples by the plan; the rest of an epoch has fewer, and says nothing.
        """
        self.has_changed = share == planned and self._hurry.observe(share, own_seconds)
        self._is_another = self.has_changed and not evaluation_seconds

    def add(
        self, share: int, seconds: dict[str, float], more: dict[str, float], *, planned: int
    ) -> None:
        """Account for a step that has just ended.

        Args:
            share: Samples of this worker in the step.
            seconds: Time per phase, as `PhaseClock.take` gives it.
            more: Other columns of `StepTiming` without their unit, per step.
            planned: See `look`.
        """
        now = time.perf_counter()
        if self._is_another:
            self.forget()
        columns = seconds | {"step": now - self.ended_at} | more
        self._window.add(share, columns, planned=planned)
        self.ended_at = now

    def take(self) -> StepTiming:
        """The means since the last time."""
        return self._window.take()
