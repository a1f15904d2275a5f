"""A plot shows every extreme and every gap, however its samples were read."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.recording.segments import NumbersOverTime
from hetero_hvd.core.recording.thinned_series import (
    PlottedSeries,
    PlotWindow,
    SeriesThinner,
    gaps_in,
    joined,
    plot_columns,
    thinned,
)

SECOND = 1_000_000


def numbers(times, values, first=1):
    """Samples of one GPU and of its node."""
    return NumbersOverTime(
        np.arange(first, first + len(times), dtype=np.int64),
        np.array(times, dtype=np.int64),
        {"0": np.array(values, dtype=np.float64), "node": np.array(values, dtype=np.float64) / 2},
    )


def shown(window, *parts, **more):
    """Columns of what is read part by part."""
    thinner = SeriesThinner(window, **more)
    for stream, part in parts:
        thinner.add(stream, part)
    return plot_columns(thinner.result())


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.floats(allow_infinity=False), st.booleans()), max_size=60
    ),
    st.integers(1, 20),
    st.sets(st.integers(1, 59)),
)
def test_how_it_was_read_does_not_matter(samples, num_intervals, cuts):
    """All at once or piece by piece: the same points. Each interval has its extremes, no others."""
    steps, values, flags = zip(*samples, strict=True) if samples else ((), (), ())
    times = np.cumsum(np.array(steps, dtype=np.int64))
    window = PlotWindow(0, 2000, num_intervals)
    whole = PlottedSeries(times, np.array(flags, dtype=bool), {"0": np.array(values, dtype=float)})
    places = [0, *sorted(cut for cut in cuts if cut < len(samples)), len(samples)]
    parts = [
        thinned(
            PlottedSeries(times[a:b], whole.is_after_gap[a:b], {"0": whole.values["0"][a:b]}),
            window,
        )
        for a, b in pairwise(places)
    ]
    found, again = thinned(whole, window), thinned(joined(parts), window)
    assert found.times.tolist() == again.times.tolist()
    assert found.is_after_gap.tolist() == again.is_after_gap.tolist()
    assert np.array_equal(found.values["0"], again.values["0"], equal_nan=True)
    for interval in range(num_intervals):
        is_in, is_shown = (each.times // window.width == interval for each in (whole, found))
        known = whole.values["0"][is_in]
        known = known[np.isfinite(known)].tolist()
        points = found.values["0"][is_shown]
        points = points[np.isfinite(points)].tolist()
        assert len(points) <= 2
        assert {*points} == ({min(known), max(known)} if known else set())


def test_few_samples_are_shown_as_they_are():
    """Their times and their order too; what is outside of the window is not there."""
    window = PlotWindow(0, 10 * SECOND, 5)
    times = [-1, 1, 3, 3.5, 9, 10]
    values = [9, 1, 3, 2, 5, 9]
    part = numbers([round(at * SECOND) for at in times], values)
    found = shown(window, ("s", part), longest_step=math.inf)
    told = {
        at: v
        for at, v in zip(found.at_seconds, found.values["0"], strict=True)
        if not math.isnan(v)
    }
    assert told == {1: 1, 3: 3, 3.5: 2, 9: 5}
    assert found.values.keys() == {"0", "node"}


STEPS = {
    "at one rate": [1, 1, 1, 1, 1, 1],
    "late now and then": [1, 1.4, 1, 2.2, 1, 1],
    "a gap": [1, 1, "5", 1, 1, 1],
    "a gap at the begin": ["5", 1, 1, 1, 1],
    "a gap at the end": [1, 1, 1, "5"],
    "one sample between two gaps": [1, 1, "100", "120", 1, 1],
    "becomes slower": [1, 1, 1, 60, 60, 60],
    "becomes faster": [60, 60, 60, 1, 1, 1],
    "one slow step more than the slowest rate": [60, 60, "151", 60, 60],
    "two samples a day apart": ["86400"],
    "two samples": [60],
    "one sample": [],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_what_is_a_gap(steps):
    """Told as a text here."""
    seconds = np.cumsum([0.0, *map(float, steps)])
    found = gaps_in((seconds * SECOND).astype(np.int64), 150 * SECOND)
    assert found.tolist() == [False, *(isinstance(step, str) for step in steps)]


def test_dropped_samples_are_a_gap_of_a_stream():
    """And none where an agent starts anew at once; a gap between two pieces or two lives is one."""
    window = PlotWindow(0, 100 * SECOND, 1000)
    each = [np.arange(start, start + 5) * SECOND for start in (0, 5, 10, 15, 40)]
    parts = [
        ("a", numbers(each[0], [1] * 5)),
        ("a", numbers(each[1], [1] * 5, first=7)),  # number 6 was dropped
        ("a", numbers(each[2], [1] * 5, first=12)),
        ("b", numbers(each[3], [1] * 5)),
        ("b", numbers(each[4], [1] * 5, first=6)),
    ]
    found = shown(window, *parts)
    ends = found.at_seconds[np.isnan(found.values["0"])]
    assert ends.tolist() == [4.5, 29.5]
    assert (np.diff(found.at_seconds) > 0).all()


def test_streams_that_overlap_are_in_the_order_of_time():
    """A device that only one of them has is not told by the other."""
    window = PlotWindow(0, 10 * SECOND, 1000)
    other = numbers([2 * SECOND, 4 * SECOND], [7, 8])
    del other.values["0"]
    found = shown(
        window, ("a", numbers([SECOND, 3 * SECOND], [1, 2])), ("b", other), longest_step=math.inf
    )
    assert found.at_seconds.tolist() == [1, 2, 3, 4]
    assert found.values["node"].tolist() == [0.5, 3.5, 1, 4]
    assert np.isnan(found.values["0"]).tolist() == [False, True, False, True]


def test_nothing_is_shown_of_nothing():
    """Before the first sample, and in a window without any."""
    for parts in ((), (("a", numbers([SECOND], [1])),)):
        found = shown(PlotWindow(0, 10, 10), *parts)
        assert found.at_seconds.tolist() == []
