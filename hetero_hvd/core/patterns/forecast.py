"""How a figure goes on: by its trend or its season, where that was nearer than its last value.

Candidates are the robust line of Theil and Sen (P. Sen, 1968: "Estimates of the regression
coefficient based on Kendall's tau") through the newest values, and the values of a season ago. Each
is tried on the series itself: from every origin of its second half as far ahead as is asked. One is
told only where its mean absolute error there is well below that of "as it is now", the rule that is
hard to beat (R. Hyndman and G. Athanasopoulos, 2021: "Forecasting: principles and practice",
section 5.2), in both halves of the trial. Its interval is that of its own errors there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.patterns.changes import binned

Values = NDArray[np.float64]

NUM_BINS = 240
"""A series is averaged to so many equal parts of its time."""

MIN_BINS = 48
"""Fewer samples tell nothing."""

MIN_KNOWN_RATIO = 0.8
"""Part of the bins in which something is known."""

LINE_RATIO = 0.25
"""Part of the bins, the newest, through which a line is drawn."""

MIN_SKILL_RATIO = 0.2
"""By so much the errors must be smaller than those of "as it is now"."""

COVERAGE = 0.8
"""So often the interval shall hold what comes."""

LARGEST_HORIZON_RATIO = 0.25
"""Of the time that is known; nothing is said of what is further away."""

DAY_SECONDS = 86400.0


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How a figure goes on.

    Attributes:
        method: `trend` or `season`.
        at_seconds: The time that it is of.
        low: The figure is above it, and below `high`, with a probability of `COVERAGE`.
        middle: What is expected.
        high: See `low`.
        now: The newest level.
        per_second: How fast it changes, and from and to which rate; of a season NaN.
        skill_ratio: By how much smaller its errors were than those of "as it is now", 0 to 1.
    """

    method: str
    at_seconds: float
    low: float
    middle: float
    high: float
    now: float
    per_second: tuple[float, float, float]
    skill_ratio: float

    def seconds_until(self, limit: float) -> tuple[float, float, float] | None:
        """After how long it reaches a limit: at the earliest, expected, and at the latest.

        None: it does not move there for certain. Infinite: perhaps never.
        """
        low, middle, high = self.per_second
        way = limit - self.now
        if not (math.isfinite(middle) and way * middle > 0 and way * low > 0 and way * high > 0):
            return None
        found = sorted(way / rate for rate in (low, middle, high))
        return found[0], found[1], found[2]


Method = Callable[[Values, int], float]
"""Gives, of equally spaced values, the one so many places after the last."""


def find_forecast(
    times: Values, values: Values, horizon_seconds: float, season_seconds: float | None = None
) -> Forecast | None:
    """The forecast of a figure; None: none is better than "as it is now", or too little is known.

    Args:
        times: Seconds, ascending.
        values: At these times; NaN where nothing is known.
        horizon_seconds: How far ahead, > 0; at most `LARGEST_HORIZON_RATIO` of the time is looked
            ahead.
        season_seconds: After which the figure may repeat itself; None: a day, where there are two.
    """
    known = np.isfinite(values)
    times, values = times[known], values[known]
    if len(times) < MIN_BINS or times[-1] <= times[0]:
        return None
    centres, means = binned(times, values, min(NUM_BINS, len(times)))
    filled = np.isfinite(means)
    if filled.mean() < MIN_KNOWN_RATIO:
        return None
    series = np.interp(centres, centres[filled], means[filled])
    spacing = float(centres[1] - centres[0])
    most = int(LARGEST_HORIZON_RATIO * len(series))
    ahead = min(max(1, round(horizon_seconds / spacing)), most)
    found = _best(series, ahead, _methods(series, spacing, season_seconds))
    if found is None:
        return None
    name, method, errors, skill = found
    middle = method(series, ahead)
    below, above = _quantiles(errors)
    rates = (math.nan,) * 3
    if name == "trend":
        if above >= abs(middle - float(series[-1])):
            return None  # it may as well stay as it is
        rate = (middle - float(series[-1])) / (ahead * spacing)
        rates = (rate + below / (ahead * spacing), rate, rate + above / (ahead * spacing))
    return Forecast(
        method=name,
        at_seconds=float(centres[-1]) + ahead * spacing,
        low=middle + below,
        middle=middle,
        high=middle + above,
        now=float(series[-1]),
        per_second=rates,
        skill_ratio=skill,
    )


def theil_sen(values: Values) -> float:
    """The slope of a line through equally spaced values: the median of those of all pairs."""
    first, second = _pairs(len(values))
    return float(np.median((values[second] - values[first]) / (second - first)))


@lru_cache(maxsize=4)
def _pairs(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.triu_indices(number, 1)


def _methods(
    series: Values, spacing: float, season_seconds: float | None
) -> Iterator[tuple[str, Method]]:
    line = max(MIN_BINS // 4, int(LINE_RATIO * len(series)))

    def trend(known: Values, ahead: int) -> float:
        return (
            float(known[-1]) + theil_sen(known[-line:]) * ahead
        )  # from where it is: a line lags behind a bend

    yield "trend", trend
    length = round((season_seconds or DAY_SECONDS) / spacing)
    if 1 < length <= len(series) / 2 - 1:

        def season(known: Values, ahead: int) -> float:
            return float(known[len(known) - length + (ahead - 1) % length])

        yield "season", season


def _best(
    series: Values, ahead: int, methods: Iterator[tuple[str, Method]]
) -> tuple[str, Method, Values, float] | None:
    """The method whose errors are smallest, with them; None: none is better than the last value."""
    origins = range(len(series) // 2, len(series) - ahead + 1)
    actual = np.array([series[origin + ahead - 1] for origin in origins])
    naive = np.abs(actual - np.array([series[origin - 1] for origin in origins]))
    best: tuple[str, Method, Values, float] | None = None
    for name, method in methods:
        told = np.array([method(series[:origin], ahead) for origin in origins])
        errors = actual - told
        skill = _skill(np.abs(errors), naive)
        if skill >= MIN_SKILL_RATIO and (best is None or skill > best[3]):
            best = name, method, errors, skill
    return best


def _skill(errors: Values, naive: Values) -> float:
    """By which part the errors are smaller, in that half of the trial where it is less."""
    half = len(errors) // 2
    parts = [(errors[:half], naive[:half]), (errors[half:], naive[half:])]
    return min(1.0 - float(own.sum() / other.sum()) if other.sum() > 0 else 0.0
               for own, other in parts)  # fmt: skip


def _quantiles(errors: Values) -> tuple[float, float]:
    """Between which the next error is with a probability of `COVERAGE`, as wide to both sides."""
    number = len(errors)
    rank = min(1.0, math.ceil((number + 1) * COVERAGE) / number)
    width = float(np.quantile(np.abs(errors), rank))
    return -width, width
