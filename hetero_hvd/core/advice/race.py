"""Which of several things is better, by values that were measured of each in the same rounds.

What drifts meanwhile (clocks, heat, other people's load) is about the same for all within a round:
so pairs of one round are compared, as logarithms, since speeds differ by ratios. Leaving out who is
certainly worse than the best before the next round is a race (Maron and Moore, "Hoeffding races",
1994), in pairs its blocking form (Moore and Lee, 1994).

Somebody else's load may slow down one round by any amount: a mean and a standard deviation are
spoiled by that, a median is not. Where a round has several values their median counts, and its
interval is that between two of the values themselves, whatever their distribution (Thompson, "On
confidence ranges for the median", 1936; David and Nagaraja, "Order statistics", 7.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

ERROR = 0.05
"""Probability that a race says anything wrong, over all its pairs and rounds of two or more."""

MIN_PAIRS = 2
"""Of fewer nothing is known about how much a value varies."""

MIN_BEHIND_RATIO = 0.2
"""See `is_far_behind`."""

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution, as a multiple of its median absolute deviation."""

MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of values from one, as a multiple of that of their mean."""

Values = Mapping[int, float]
"""Round to what was measured in it, > 0."""

Rounds = Mapping[int, Sequence[float]]
"""Round to all that was measured in it, in its order; each > 0, one value at least."""


class Ratio(NamedTuple):
    """How many times as large one thing is as another.

    Attributes:
        low: At least; 0: nothing is known.
        middle: Geometric mean over the rounds, or the median; NaN: there is none.
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
    ends = [math.exp(_within_bounds(value)) for value in (middle - width, middle + width)]
    return Ratio(ends[0], math.exp(middle), ends[1])


def median_ratio_of(rounds: Rounds, others: Rounds, *, error: float) -> Ratio:
    """The median of the paired values of all common rounds, and its order-statistic interval.

    Values of one round are alike, since load stays for a while, and then count for fewer (Kish,
    "Survey sampling", 1965, 5.4). How alike they are is told by median absolute deviations, of the
    rounds' medians and of the values within them, so that one loaded round does not decide that.

    Args:
        rounds: Of the one.
        others: Of the other one.
        error: Probability that the truth lies outside, > 0, < 1.
    """
    pairs = [
        [  # one of them may have been measured for longer
            math.log(one) - math.log(other)
            for one, other in zip(rounds[key], others[key], strict=False)
        ]
        for key in rounds.keys() & others.keys()
    ]
    values = sorted(value for each in pairs for value in each)
    if not values:
        return UNKNOWN
    middle = math.exp(_within_bounds(median(values)))
    num_worth = _num_independent(pairs)
    rank = _rank(num_worth, error)
    if len(pairs) < MIN_PAIRS or not rank:
        return UNKNOWN._replace(middle=middle)
    # Of so many values that are worth fewer the same part lies beyond.
    place = (rank - 1) * len(values) // num_worth
    low, high = values[place], values[-1 - place]
    return Ratio(math.exp(_within_bounds(low)), middle, math.exp(_within_bounds(high)))


def _num_independent(pairs: Sequence[Sequence[float]]) -> int:
    """How many independent values those of these rounds are worth: from one a round to all."""
    num_values = sum(map(len, pairs))
    per_round = num_values / len(pairs)
    middles = [median(each) for each in pairs]
    within = _deviation([value - median(each) for each in pairs for value in each])
    between = _deviation([middle - median(middles) for middle in middles])
    beyond = max(0.0, between**2 - MEDIAN_VARIANCE * within**2 / per_round)
    likeness = beyond / (beyond + within**2) if beyond else 0.0
    return int(num_values / (1.0 + (per_round - 1.0) * likeness))


def _deviation(errors: Sequence[float]) -> float:
    return NORMAL_MAD * median(map(abs, errors))


def _rank(num_values: int, error: float) -> int:
    """Which value from below and from above encloses the median so surely; 0: none does."""
    beyond, rank = 0, 0
    for number in range(num_values // 2):
        beyond += math.comb(num_values, number)
        if 2 * beyond > error * 2**num_values:
            break
        rank = number + 1
    return rank


def _within_bounds(log: float) -> float:
    return min(max(log, -700.0), 700.0)


def error_of_a_pair(num_pairs: int, max_rounds: int) -> float:
    """So that all comparisons of a race together are wrong with `ERROR` at most (Bonferroni).

    Args:
        num_pairs: Of things that may be compared, >= 1. Where the best is found by what is
            measured, these are all pairs: any of them may seem the best.
        max_rounds: Each is a look at all of them, >= `MIN_PAIRS`.
    """
    return ERROR / max(1, num_pairs * (max_rounds - MIN_PAIRS + 1))


def is_far_behind(rounds: Rounds, best: Rounds) -> bool:
    """Whether it was far behind in each of two rounds at least, with whatever was measured.

    This is a rule that saves time and no test, so `ERROR` does not hold for it. One round is not
    enough: it may have been slowed down by others.

    Args:
        rounds: Of who may leave the race.
        best: Of the best one.
    """
    common = rounds.keys() & best.keys()
    return len(common) >= MIN_PAIRS and all(
        max(rounds[key]) < (1 - MIN_BEHIND_RATIO) * min(best[key]) for key in common
    )


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
