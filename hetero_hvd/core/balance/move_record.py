"""What plans brought, as measured: whether predictions of the model are to be believed.

The model of a worker is a line or a known staircase. Devices that compute in blocks, and workers
that share a processor, are neither: there the model promises gains that never come, over and over.
So each move is held against what was measured before and after it; after one that did not bring
half of what it promised no other is made for a while, twice as long each time. A worker that slows
down all the while is no fault of the model: a promise that was kept beside a drift is no failure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

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
Row = tuple[int, float]
"""Last step of a table, and the busy seconds of the slowest worker in it."""


class MoveRecord:
    """The seconds of the plans that were in force, and how the last moves went."""

    def __init__(self) -> None:
        self._rows: dict[Plan, deque[Row]] = {}
        self._current: Plan = ()
        self._known_seconds = math.nan
        self._before: Sequence[Row] = ()
        self._promised_ratio = math.nan
        self._num_failed = 0
        self._hold_until_step = self._open_until_step = -1

    def forget_seconds(self) -> None:
        """Workers have changed: what was measured before says nothing about now."""
        self._rows.clear()
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
        if math.isnan(self._promised_ratio) or math.isnan(_median(self._before)):
            self._before = tuple(self._rows.get(before, ()))[-NEWEST_ROWS:]
            self._promised_ratio = promised_ratio
        else:  # the move before is not judged yet: both are judged as one
            self._promised_ratio = 1 - (1 - self._promised_ratio) * (1 - promised_ratio)
        self._open_until_step = step + FIRST_HOLD_STEPS
        self._current = after
        self._known_seconds = self.seconds(after)
        self._rows.pop(after, None)  # it is measured anew

    def observe(self, plan: Plan, slowest_seconds: float, step: int) -> None:
        """Take the busy time of the slowest worker in a table that was measured under a plan."""
        if not (math.isfinite(slowest_seconds) and slowest_seconds > 0):
            return
        if plan not in self._rows and len(self._rows) >= MOST_PLANS:
            del self._rows[next(iter(self._rows))]  # the oldest
        rows = self._rows.setdefault(plan, deque(maxlen=MOST_ROWS))
        rows.append((step, slowest_seconds))
        if plan != self._current or len(rows) < FEWEST_ROWS:
            return
        if abs(self.seconds(plan) / self._known_seconds - 1) > CHANGED_RATIO:
            self.forget_seconds()  # the same plan takes another time now: the workers have changed
        elif math.isfinite(self._promised_ratio):
            self._judge(plan, step)

    def seconds(self, plan: Plan) -> float:
        """Median busy time of the slowest worker under a plan; NaN if it is not measured."""
        return _median(self._rows.get(plan, ()))

    def faster_than(self, plan: Plan) -> tuple[Plan, float] | None:
        """The fastest plan that was measured, and its seconds, if clearly faster than this one.

        Plans of other batches, such as an epoch's small last one, are no plans for this batch.
        """
        measured = [
            other
            for other in self._rows
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
        errors = math.hypot(
            *(self._error_ratio(self._rows.get(each, ())) for each in (plan, other))
        )
        resolution = max(RESOLUTION_RATIO, RESOLUTION_ERRORS * errors)
        return self.seconds(plan) < self.seconds(other) * (1 - resolution)

    def _error_ratio(self, measured: Sequence[Row]) -> float:
        """Standard error of the median of rows, divided by it, from the spread under all plans."""
        deviations = [
            abs(seconds / centre - 1)
            for rows in self._rows.values()
            for centre in [median(seconds for _, seconds in rows)]
            for _, seconds in rows
        ]
        sigma = MAD_TO_SIGMA * median(deviations) if deviations else 0.0
        return MEDIAN_ERROR * sigma / math.sqrt(max(1, len(measured)))

    def _judge(self, plan: Plan, step: int) -> None:
        """Decide whether the last move brought what it promised, once that is clear."""
        rows, promised = self._rows[plan], self._promised_ratio
        surplus = 1 - _median(rows) / _median(self._before) - KEPT_RATIO * promised
        if math.isnan(surplus):
            self._promised_ratio = math.nan
            return
        errors = math.hypot(*(self._error_ratio(each) for each in (self._before, rows)))
        doubt = RESOLUTION_ERRORS * errors
        if abs(surplus) < max(RESOLUTION_RATIO, doubt) and len(rows) < MOST_ROWS:
            return
        self._promised_ratio = math.nan
        if abs(surplus) < doubt or (surplus < 0 and _is_drift(self._before, rows, promised)):
            return
        if surplus >= 0:
            self._num_failed = 0
            return
        hold = FIRST_HOLD_STEPS * 2**self._num_failed
        self._hold_until_step = step + min(hold, LAST_HOLD_STEPS)
        self._num_failed = min(self._num_failed + 1, 10)


def _median(rows: Sequence[Row]) -> float:
    """Of their seconds; NaN of too few."""
    return median(seconds for _, seconds in rows) if len(rows) >= FEWEST_ROWS else math.nan


def _is_drift(before: Sequence[Row], after: Sequence[Row], promised_ratio: float) -> bool:
    """Whether time rather than the move has cost what was promised.

    That is a straight line through all rows, with the promised jump at the move; a model that was
    wrong is a level before it and another one after. Either has two parameters, and the one that
    leaves less of the squares is believed.
    """
    early = [(step, math.log(seconds)) for step, seconds in before]
    late = [(step, math.log(seconds) - math.log(1 - promised_ratio)) for step, seconds in after]
    levels = sum(_squares_left([(0, value) for _, value in rows]) for rows in (early, late))
    return _squares_left(early + late) < levels


def _squares_left(points: Sequence[tuple[float, float]]) -> float:
    """Sum of the squares about the straight line through points; about their mean at one place."""
    x0, y0 = (fmean(axis) for axis in zip(*points, strict=True))
    xx = sum((x - x0) ** 2 for x, _ in points)
    xy = sum((x - x0) * (y - y0) for x, y in points)
    yy = sum((y - y0) ** 2 for _, y in points)
    return yy - (xy * xy / xx if xx else 0.0)
