"""What plans brought, as measured: whether predictions of the model are to be believed.

The model of a worker is a line or a known staircase. Devices that compute in blocks, and workers
that share a processor, are neither: there the model promises gains that never come, over and over.
So each move is held against what was measured before and after it; after one that did not bring
half of what it promised no other is made for a while, twice as long each time.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

FEWEST_ROWS, MOST_ROWS = 3, 20
"""Tables under a plan before it counts as measured, and of how many the median is taken."""

NEWEST_ROWS = 5
"""Of so many tables the time just before a move is taken."""

MOST_PLANS = 50
"""So many plans are remembered."""

KEPT_RATIO = 0.5
"""Part of the promised gain that a move must bring."""

FIRST_HOLD_STEPS, LAST_HOLD_STEPS = 40, 1280
"""How long no other move is made after the first that failed; doubled with each further one."""

CHANGED_RATIO = 0.15
"""A plan that is in force again and differs so much from before tells that workers have changed."""

RESOLUTION_RATIO, RESOLUTION_ERRORS = 0.03, 3.0
"""Plans whose medians differ by less, or by fewer standard errors, are equally good."""

MEDIAN_ERROR, MAD_TO_SIGMA = 1.25, 1.48
"""Of a normal distribution: standard error of the median of n values, times the root of n, over
their standard deviation; that deviation over the median absolute one."""

Plan = tuple[int, ...]


class MoveRecord:
    """The seconds of the plans that were in force, and how the last moves went."""

    def __init__(self) -> None:
        self._seconds: dict[Plan, deque[float]] = {}
        self._current: Plan = ()
        self._known_seconds = math.nan
        self._before_seconds = math.nan
        self._promised_ratio = math.nan
        self._num_failed = 0
        self._hold_until_step = self._open_until_step = -1

    def forget_seconds(self) -> None:
        """Workers have changed: what was measured before says nothing about now."""
        self._seconds.clear()
        self._promised_ratio = self._known_seconds = math.nan
        self._hold_until_step = -1

    def holds(self, step: int) -> bool:
        """Whether the model is not believed at this step."""
        return step < self._hold_until_step

    def is_pending(self, step: int) -> bool:
        """Whether a move after one that failed is not measured yet: one at a time from then on.

        A plan whose rows do not come, or measure nothing, is not waited for without end.
        """
        is_open = self._num_failed > 0 and math.isfinite(self._promised_ratio)
        is_measured = math.isfinite(self.seconds(self._current))
        return is_open and not is_measured and step < self._open_until_step

    @property
    def hold_until_step(self) -> int:
        """First step at which it is believed again."""
        return self._hold_until_step

    def moved(self, before: Plan, after: Plan, promised_ratio: float, step: int) -> None:
        """A plan is followed.

        Args:
            step: At which this was decided.
            before: The plan that was in force.
            after: The plan that will be.
            promised_ratio: Part of the step time that it is predicted to save.
        """
        if math.isnan(self._promised_ratio) or math.isnan(self._before_seconds):
            self._before_seconds = self._newest(before)
            self._promised_ratio = promised_ratio
        else:  # the move before is not judged yet: both are judged as one
            self._promised_ratio = 1 - (1 - self._promised_ratio) * (1 - promised_ratio)
        self._open_until_step = step + FIRST_HOLD_STEPS
        self._current = after
        self._known_seconds = self.seconds(after)
        self._seconds.pop(after, None)  # it is measured anew

    def observe(self, plan: Plan, slowest_seconds: float, step: int) -> None:
        """Take the busy time of the slowest worker in a table that was measured under a plan."""
        if not (math.isfinite(slowest_seconds) and slowest_seconds > 0):
            return
        if plan not in self._seconds and len(self._seconds) >= MOST_PLANS:
            del self._seconds[next(iter(self._seconds))]  # the oldest
        rows = self._seconds.setdefault(plan, deque(maxlen=MOST_ROWS))
        rows.append(slowest_seconds)
        if plan != self._current or len(rows) < FEWEST_ROWS:
            return
        if abs(self.seconds(plan) / self._known_seconds - 1) > CHANGED_RATIO:
            self.forget_seconds()  # the same plan takes another time now: the workers have changed
        elif math.isfinite(self._promised_ratio):
            self._judge(plan, step)

    def seconds(self, plan: Plan) -> float:
        """Median busy time of the slowest worker under a plan; NaN if it is not measured."""
        rows = self._seconds.get(plan, ())
        return median(rows) if len(rows) >= FEWEST_ROWS else math.nan

    def _newest(self, plan: Plan) -> float:
        """The same of its last rows alone: workers may drift."""
        rows = list(self._seconds.get(plan, ()))[-NEWEST_ROWS:]
        return median(rows) if len(rows) >= FEWEST_ROWS else math.nan

    def faster_than(self, plan: Plan) -> tuple[Plan, float] | None:
        """The fastest plan that was measured, and its seconds, if clearly faster than this one.

        Plans of other batches, such as an epoch's small last one, are no plans for this batch.
        """
        measured = [
            other
            for other in self._seconds
            if sum(other) == sum(plan) and not math.isnan(self.seconds(other))
        ]
        best = min(measured, key=self.seconds, default=plan)
        return (best, self.seconds(best)) if self._is_faster(best, plan) else None

    def is_no_gain(self, current: Plan, proposed: Plan) -> bool:
        """Whether the proposed plan was measured already, and was not clearly faster."""
        is_measured = not math.isnan(self.seconds(proposed) + self.seconds(current))
        return is_measured and not self._is_faster(proposed, current)

    def _is_faster(self, plan: Plan, other: Plan) -> bool:
        """Whether one plan is clearly faster than another; False where either is not measured."""
        errors = math.hypot(*(self._error_ratio(each) for each in (plan, other)))
        resolution = max(RESOLUTION_RATIO, RESOLUTION_ERRORS * errors)
        return self.seconds(plan) < self.seconds(other) * (1 - resolution)

    def _error_ratio(self, plan: Plan) -> float:
        """Standard error of a plan's median, divided by it, from the spread under all plans."""
        deviations = [
            abs(seconds / centre - 1)
            for rows in self._seconds.values()
            for centre in [median(rows)]
            for seconds in rows
        ]
        sigma = MAD_TO_SIGMA * median(deviations) if deviations else 0.0
        return MEDIAN_ERROR * sigma / math.sqrt(max(1, len(self._seconds.get(plan, ()))))

    def _judge(self, plan: Plan, step: int) -> None:
        """Decide whether the last move brought what it promised, once that is clear."""
        gain, promised = 1 - self.seconds(plan) / self._before_seconds, self._promised_ratio
        if math.isnan(gain):
            self._promised_ratio = math.nan
            return
        doubt = max(RESOLUTION_RATIO, RESOLUTION_ERRORS * self._error_ratio(plan))
        is_kept = gain >= KEPT_RATIO * promised
        if abs(gain - KEPT_RATIO * promised) < doubt and len(self._seconds[plan]) < MOST_ROWS:
            return
        self._promised_ratio = math.nan
        if is_kept:
            self._num_failed = 0
            return
        hold = FIRST_HOLD_STEPS * 2**self._num_failed
        self._hold_until_step = step + min(hold, LAST_HOLD_STEPS)
        self._num_failed = min(self._num_failed + 1, 10)
