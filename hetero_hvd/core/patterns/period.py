"""The period of a cyclic series, such as a GPU's use in a training whose steps nobody marks.

A periodogram is compared with that of red noise, and its largest ordinate is judged by Fisher's
exact test (R. A. Fisher, 1929: "Tests of significance in harmonic analysis"). Without the red noise
(M. Mann and J. Lees, 1996: "Robust estimation of background noise and signal detection in climatic
time series") random walks, as which memory and temperature behave, would be called cyclic. What
passes is confirmed by the autocorrelation at its lag, which also tells a period from its harmonics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

MIN_SAMPLES = 24
"""Fewer say nothing."""

MAX_MISSING_RATIO = 0.2
"""Of the samples; what is missing is interpolated, which makes cycles of its own."""

MAX_P_VALUE = 0.001
"""Of Fisher's test: so often would noise without a period have an ordinate as large."""

MIN_CYCLES = 3
"""In the series: what comes twice may be chance."""

MIN_CORRELATION = 0.3
"""Autocorrelation at the lag of the period, and by how much it exceeds that of half of it."""

FINENESS = 8
"""Lags to a sample at which the series is correlated with itself."""

NUM_HARMONICS = 5
"""That are added up to find the period more exactly than the length of the series alone allows."""


@dataclass(frozen=True, kw_only=True)
class Period:
    """A period that was found.

    Attributes:
        seconds: Of one cycle, > 0.
        p_value: How probable an ordinate as large is in noise, 0 to `MAX_P_VALUE`.
        correlation: Of the series with itself one period later, `MIN_CORRELATION` to 1.
        num_cycles: In the series, >= `MIN_CYCLES`.
    """

    seconds: float
    p_value: float
    correlation: float
    num_cycles: float


def find_period(values: Sequence[float] | Values, spacing_seconds: float) -> Period | None:
    """The period of a series; None where it has none that can be told from noise.

    Args:
        values: Equally spaced in time; NaN where a sample is missing.
        spacing_seconds: Between two of them, > 0. Periods below two spacings cannot be seen, and
            may appear as longer ones.
    """
    series = _prepared(np.asarray(values, dtype=np.float64))
    if series is None:
        return None
    p_value, num_cycles = min(_tested(series, offset) for offset in (0.0, 0.5))
    p_value = min(1.0, 2 * p_value)  # of two tests the better one (Bonferroni)
    if p_value > MAX_P_VALUE:
        return None
    correlations = _autocorrelation(series)
    lag = len(series) / num_cycles
    found = _fundamental(correlations, lag, len(series) / MIN_CYCLES)
    if found is None:
        return None
    lag = _refined(series, found)
    correlation = _at(correlations, lag)
    return Period(
        seconds=lag * spacing_seconds,
        p_value=p_value,
        correlation=min(1.0, correlation),  # of parts, it may be a little more
        num_cycles=len(series) / lag,
    )


def _prepared(values: Values) -> Values | None:
    """Without gaps, mean and trend; None: too short, too many gaps, or constant."""
    known = np.isfinite(values)
    num_missing = len(values) - int(known.sum())
    if len(values) < MIN_SAMPLES or num_missing > MAX_MISSING_RATIO * len(values):
        return None
    at = np.arange(len(values), dtype=np.float64)
    filled = np.interp(at, at[known], values[known])
    slope, level = np.polyfit(at, filled, 1)
    series: Values = filled - (slope * at + level)
    is_flat = float(np.std(series)) <= 1e-9 * max(1.0, float(np.max(np.abs(filled))))
    return None if is_flat else series


def _tested(series: Values, offset: float) -> tuple[float, float]:
    """The value of Fisher's test, and how many cycles the series has by its largest ordinate.

    Args:
        series: See `_prepared`.
        offset: Of the frequencies from whole numbers of cycles in the series. A period of half a
            cycle more has its power in two ordinates where they are whole, and in one at 0.5.
    """
    number = len(series)
    shifted = series * np.exp(-2j * np.pi * offset * np.arange(number) / number)
    power = np.abs(np.fft.fft(shifted)[MIN_CYCLES : (number + 1) // 2]) ** 2
    frequencies = np.arange(len(power), dtype=np.float64) + (MIN_CYCLES + offset)
    whitened = power / _red_noise(series, frequencies)
    return _fisher(whitened), float(frequencies[int(np.argmax(whitened))])


def _red_noise(series: Values, frequencies: Values) -> Values:
    """Expected ordinates of noise in which each value remembers the one before.

    The spectrum of a process of first order with the series' correlation r of neighbours is
    (1 - r^2) / (1 - 2 r cos w + r^2).
    """
    centred = series - series.mean()
    r = float(centred[:-1] @ centred[1:] / (centred @ centred))
    r = min(max(r, 0.0), 0.999)
    angles = 2 * np.pi * frequencies / len(series)
    spectrum: Values = (1 - r * r) / (1 - 2 * r * np.cos(angles) + r * r)
    return spectrum


def _fisher(ordinates: Values) -> float:
    """How probable so large a largest part of the sum is, if all are exponential alike.

    P(g > x) = sum over k from 1 to floor(1/x) of (-1)^(k-1) C(m, k) (1 - k x)^(m-1); its first term
    alone is an upper bound.
    """
    number, total = len(ordinates), float(ordinates.sum())
    if total <= 0:
        return 1.0
    g = float(ordinates.max()) / total
    return min(1.0, math.exp(math.log(number) + (number - 1) * math.log1p(-min(g, 1 - 1e-15))))


def _autocorrelation(series: Values) -> Values:
    """Of the parts that overlap, at lags from 0 to half of the length in steps of 1 / `FINENESS`.

    Between whole samples it is that of the curve through them that has no higher frequencies.
    """
    number = len(series)
    power = np.abs(np.fft.rfft(series, 2 * number)) ** 2
    sums = np.fft.irfft(power, 2 * number * FINENESS)[: number // 2 * FINENESS + 1]
    lags = np.arange(len(sums)) / FINENESS
    found: Values = sums / sums[0] * number / (number - lags)
    return found


def _at(correlations: Values, lag: float) -> float:
    """At the nearest lag."""
    return float(correlations[min(len(correlations) - 1, round(lag * FINENESS))])


def _fundamental(correlations: Values, lag: float, longest: float) -> float | None:
    """The lag of a cycle, of which the largest ordinate may be a harmonic; None: not confirmed."""
    candidates = [number * lag for number in range(1, NUM_HARMONICS + 1) if number * lag <= longest]
    peaks = [_peak(correlations, each) for each in candidates]
    best = max(peaks, default=0.0)
    for candidate, peak in zip(candidates, peaks, strict=True):
        is_confirmed = peak >= MIN_CORRELATION and peak >= 0.5 * best
        if is_confirmed and peak - _at(correlations, candidate / 2) >= MIN_CORRELATION:
            return candidate
    return None


def _peak(correlations: Values, lag: float) -> float:
    """The largest correlation within half a sample, or 5 %, of a lag."""
    room = max(0.5, 0.05 * lag)
    low, high = math.ceil((lag - room) * FINENESS), math.floor((lag + room) * FINENESS)
    return float(correlations[low : high + 1].max(initial=-1.0))


def _refined(series: Values, lag: float) -> float:
    """Where the period's frequency and its harmonics together have most power."""
    number = len(series)
    at = np.arange(number)
    window = series * np.hanning(number)

    def power(frequency: float) -> float:
        harmonics = range(1, min(NUM_HARMONICS, int(0.5 / frequency)) + 1)
        return sum(
            float(np.abs(window @ np.exp(-2j * np.pi * frequency * h * at)) ** 2) for h in harmonics
        )

    centre, half = 1.0 / lag, 1.0 / number
    for _ in range(4):
        grid = np.clip(np.linspace(centre - half, centre + half, 9), 1e-6, 0.5)
        centre = float(grid[int(np.argmax([power(float(each)) for each in grid]))])
        half /= 4
    return 1.0 / centre
