"""Whether a device works in cycles, over a long recording: window by window, as jobs change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.patterns.period import MAX_MISSING_RATIO, find_period

Values = NDArray[np.float64]

WINDOW_SECONDS, WINDOW_SAMPLES = 60.0, 60
"""A window is looked at by itself; it is the longer of both, or all of a shorter recording."""

LONGER = 4
"""Windows so many times as long are looked at where those show nothing: they have more cycles."""

MIN_WINDOW_RATIO = 0.5
"""Part of the windows with enough samples that must have a period: less is told as none."""

MAX_SPREAD_RATIO = 0.1
"""Windows count as of one cycle if their period is that near to the median of all."""

GAP_STEPS = 1.5
"""So many times the usual step between two samples: one is missing there."""

MIN_KNOWN_RATIO = 1 - MAX_MISSING_RATIO


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """A cycle that lasts.

    Attributes:
        seconds: The median period, > 0.
        window_ratio: Part of the windows in which it was found, `MIN_WINDOW_RATIO` to 1.
        num_windows: That had enough samples to tell, >= 1.
    """

    seconds: float
    window_ratio: float
    num_windows: int


def find_cycle(times: Values, values: Values) -> Cycle | None:
    """The cycle of a figure; None where most of the time has none, or not enough is known.

    Args:
        times: Of the samples, seconds, ascending.
        values: At these times; NaN where it was not told.
    """
    steps = np.diff(times)
    if not len(steps) or (median_step := float(np.median(steps))) <= 0:
        return None
    spacing = float(steps[steps <= GAP_STEPS * median_step].mean())
    length = max(WINDOW_SAMPLES * spacing, WINDOW_SECONDS)
    is_long = bool(times[-1] - times[0] >= LONGER * length)
    for each in (length, LONGER * length) if is_long else (length,):
        found = [find_period(window, spacing) for window in _windows(times, values, spacing, each)]
        periods = np.array([period.seconds for period in found if period is not None])
        if len(periods):
            return _most(periods, len(found))
    return None


def _most(periods: Values, num_windows: int) -> Cycle | None:
    """The cycle of most windows; None: they differ, or are too few."""
    median = float(np.median(periods))
    num_alike = int((np.abs(periods - median) <= MAX_SPREAD_RATIO * median).sum())
    if num_alike < MIN_WINDOW_RATIO * num_windows:
        return None
    return Cycle(seconds=median, window_ratio=num_alike / num_windows, num_windows=num_windows)


def _windows(times: Values, values: Values, spacing: float, length: float) -> Iterator[Values]:
    """Equally spaced pieces of the series, most of whose samples are known."""
    size = round(min(length, times[-1] - times[0]) / spacing)
    numbers = ((times - times[0]) // length).astype(np.int64)
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    for begin, end in pairwise([*begins.tolist(), len(times)]):
        own = times[begin:end]
        places = np.rint((own - own[0]) / spacing).astype(np.int64)  # clocks drift: see each alone
        window = np.full(size, np.nan)
        is_inside = places < len(window)
        window[places[is_inside]] = values[begin:end][is_inside]
        if np.isfinite(window).mean() >= MIN_KNOWN_RATIO:
            yield window
