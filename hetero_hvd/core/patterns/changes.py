"""Where the level of a series changes, and where a device is idle.

Change points minimise the squared distance from a level for each piece, plus a price for each
change (optimal partitioning: B. Jackson et al., 2005: "An algorithm for optimal partitioning of
data on an interval"). The price is that of Bayes' information criterion as modified for change
points (N. Zhang and D. Siegmund, 2007: "A modified Bayes information criterion with applications to
the analysis of comparative genomic hybridization data"), times what neighbours that are alike add
to the variance of a mean: else noise that remembers would have changes.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

MAX_BINS = 360
"""A series is averaged to at most so many equal parts of its time."""

MIN_PIECE_BINS = 6
"""A piece has at least so many of them."""

MIN_CHANGE_DEVIATIONS = 3.0
"""Between two pieces, in standard deviations within them: less is of no use to anybody."""

MIN_CHANGE_RATIO = 0.1
"""And of all that the series spans: a bin in which the level changes has one of its own."""

PENALTY = 3.0
"""Times the logarithm of the number of bins: one for the level that a change adds, two for its
place."""

MAX_MEMORY = 0.9
"""Correlation of neighbours that is believed; noise that remembers more is a random walk."""


class LevelChange(NamedTuple):
    """A change of level.

    Attributes:
        at_seconds: When.
        before: Mean of the piece before.
        after: Mean of the piece after.
    """

    at_seconds: float
    before: float
    after: float


class Phase(NamedTuple):
    """A stretch of time, seconds."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def binned(times: Values, values: Values, num_bins: int) -> tuple[Values, Values]:
    """Centres and means of equal parts of the time; NaN: nothing is known of one.

    Args:
        times: Seconds, ascending, at least two different ones.
        values: At these times; NaN where nothing is known.
        num_bins: >= 1.
    """
    known = np.isfinite(values)
    edges = np.linspace(times[0], times[-1], num_bins + 1)
    place = np.clip(np.searchsorted(edges, times[known], side="right") - 1, 0, num_bins - 1)
    sums = np.bincount(place, values[known], minlength=num_bins)
    counts = np.bincount(place, minlength=num_bins).astype(np.float64)
    means = np.divide(sums, counts, out=np.full(num_bins, np.nan), where=counts > 0)
    return (edges[:-1] + edges[1:]) / 2, means


def find_changes(times: Values, values: Values) -> list[LevelChange]:
    """The changes of level, by time; none where too little is known.

    Args:
        times: Seconds, ascending.
        values: At these times; NaN where nothing is known.
    """
    if len(times) < 2 * MIN_PIECE_BINS or times[-1] <= times[0]:
        return []
    centres, means = binned(times, values, min(MAX_BINS, len(times)))
    known = np.isfinite(means)
    centres, means = centres[known], means[known]
    if len(means) < 2 * MIN_PIECE_BINS:
        return []
    noise, inflation = _noise(means)
    noise = max(noise, 1e-12 * max(1.0, float(np.max(means**2))))
    penalty = PENALTY * float(np.log(len(means))) * noise * inflation
    bounds = [0, *_partition(means, penalty), len(means)]
    levels = [float(means[a:b].mean()) for a, b in itertools.pairwise(bounds)]
    least = max(
        MIN_CHANGE_DEVIATIONS * float(np.sqrt(noise)), MIN_CHANGE_RATIO * float(np.ptp(means))
    )
    return [
        LevelChange(float((centres[place - 1] + centres[place]) / 2), before, after)
        for place, before, after in zip(bounds[1:-1], levels, levels[1:], strict=False)
        if abs(after - before) >= least
    ]


def idle_phases(
    times: Values, use: Values, *, most: float, least_seconds: float, longest_step: float
) -> list[Phase]:
    """Stretches in which a device was not used.

    Args:
        times: Seconds, ascending.
        use: At these times, 0 to 1; NaN where it is not known: no stretch goes on over that.
        most: Of it counts as idle.
        least_seconds: Shorter ones are a part of the work.
        longest_step: Between two samples; over a longer one no stretch goes on.
    """
    phases: list[Phase] = []
    begin: float | None = None
    last = np.nan
    for at, value in zip(times.tolist(), use.tolist(), strict=True):
        goes_on = value <= most and (begin is None or at - last <= longest_step)
        if begin is not None and not goes_on:
            phases.append(Phase(begin, last))
            begin = None
        if value <= most:
            begin, last = (at if begin is None else begin), at
    if begin is not None:
        phases.append(Phase(begin, last))
    return [phase for phase in phases if phase.seconds >= least_seconds]


def _noise(means: Values) -> tuple[float, float]:
    """Variance around the levels, and by how much neighbours that are alike raise that of a mean.

    Of differences of neighbours, half of which is the variance that is left when levels change
    seldom; the median of squares does not see a change. Differences two apart tell the memory.
    """
    one, two = np.diff(means), means[2:] - means[:-2]
    scale = 0.4549  # the median of the square of a normal variable of variance 1
    near, far = float(np.median(one**2)) / scale / 2, float(np.median(two**2)) / scale / 2
    # variance v and memory r: near = v (1 - r), far = v (1 - r^2)
    memory = min(max(far / near - 1.0, 0.0), MAX_MEMORY) if near > 0 else 0.0
    return near / (1.0 - memory), (1.0 + memory) / (1.0 - memory)


def _partition(means: Values, penalty: float) -> list[int]:
    """First places of all pieces but the first, of the cheapest partition; O(n^2)."""
    number = len(means)
    sums = np.concatenate(([0.0], np.cumsum(means)))
    squares = np.concatenate(([0.0], np.cumsum(means**2)))
    best = np.full(number + 1, np.inf)
    best[0] = -penalty
    before = np.zeros(number + 1, dtype=np.int64)
    for end in range(MIN_PIECE_BINS, number + 1):
        begins = np.arange(end - MIN_PIECE_BINS + 1)
        lengths = end - begins
        costs = squares[end] - squares[begins] - (sums[end] - sums[begins]) ** 2 / lengths
        totals = best[begins] + costs + penalty
        before[end] = int(np.argmin(totals))
        best[end] = totals[before[end]]
    places: list[int] = []
    end = number
    while before[end] > 0:
        end = int(before[end])
        places.append(end)
    return places[::-1]
