"""Which of several things is better, by values that were measured of each in the same rounds.

What drifts meanwhile (clocks, heat, other people's load) is about the same for all within a round:
so pairs of one round are compared, as logarithms, since speeds differ by ratios. Leaving out who is
certainly worse than the best before the next round is a race (Maron and Moore, "Hoeffding races",
1994), in pairs its blocking form (Moore and Lee, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

ERROR = 0.05
"""Probability that a race says anything wrong, over all its pairs and rounds of two or more."""

MIN_PAIRS = 2
"""Of fewer nothing is known about how much a value varies."""

MIN_BEHIND_RATIO = 0.2
"""See `is_far_behind`."""

Values = Mapping[int, float]
"""Round to what was measured in it, > 0."""


class Ratio(NamedTuple):
    """How many times as large one thing is as another.

    Attributes:
        low: At least; 0: nothing is known.
        middle: Geometric mean over the rounds; NaN: there is none.
        high: At most; infinite: nothing is known.
    """

    low: float
    middle: float
    high: float


UNKNOWN = Ratio(0.0, math.nan, math.inf)


def ratio_of(values: Values, others: Values, *, error: float) -> Ratio:
    """By the rounds in which both were measured: Student's interval of paired differences (1908).

    Args:
        values: Of the one.
        others: Of the other one.
        error: Probability that the truth lies outside, > 0, < 1.
    """
    logs = [math.log(values[key]) - math.log(others[key]) for key in values.keys() & others.keys()]
    if len(logs) < MIN_PAIRS:
        return UNKNOWN if not logs else UNKNOWN._replace(middle=math.exp(logs[0]))
    width = student(1.0 - error / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    ends = [min(max(value, -700.0), 700.0) for value in (middle - width, middle + width)]
    return Ratio(math.exp(ends[0]), math.exp(middle), math.exp(ends[1]))


def error_of_a_pair(num_pairs: int, max_rounds: int) -> float:
    """So that all comparisons of a race together are wrong with `ERROR` at most (Bonferroni).

    Args:
        num_pairs: Of things that may be compared, >= 1. Where the best is found by what is
            measured, these are all pairs: any of them may seem the best.
        max_rounds: Each is a look at all of them, >= `MIN_PAIRS`.
    """
    return ERROR / max(1, num_pairs * (max_rounds - MIN_PAIRS + 1))


def is_far_behind(most: float, least: float) -> bool:
    """Whether what was measured in one round leaves the race by that.

    One round says nothing of how much rounds differ: this is a rule that saves time and no test, so
    `ERROR` does not hold for it.

    Args:
        most: The best that was measured of it in this round.
        least: The worst that was measured of the best one in this round.
    """
    return most < (1 - MIN_BEHIND_RATIO) * least


def student(probability: float, freedom: int) -> float:
    """Quantile of Student's distribution, to 1 % and better.

    One and two degrees of freedom have closed forms; beyond them the expansion of Hill, "Algorithm
    396: Student's t-quantiles", CACM 13 (1970).

    Args:
        probability: > 0.5, < 1.
        freedom: Degrees, >= 1.
    """
    tails = 2.0 * (1.0 - probability)
    if freedom == 1:
        return 1.0 / math.tan(tails * math.pi / 2)
    if freedom == 2:  # noqa: PLR2004 - see above
        return math.sqrt(2.0 / (tails * (2.0 - tails)) - 2.0)
    n = float(freedom)
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2) * n
    y = (d * tails) ** (2.0 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails * 0.5)
        y = x**2
        if freedom < 5:  # noqa: PLR2004
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y**2)
    else:
        z = 1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)
        y = (z * y - 1.0) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)
