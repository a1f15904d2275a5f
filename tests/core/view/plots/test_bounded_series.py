"""Series of any length keep their extremes and means in bounded memory, and fit their pixels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.view.plots.bounded_series import MAX_ROWS, MIN_ROWS, BoundedSeries, PlotRange

NAN = math.nan


def series_of(values, *, max_cells=MIN_ROWS, column="x"):
    """One column, a value a step and second."""
    series = BoundedSeries(max_cells)
    for step, value in enumerate(values):
        series.add(float(step), step, {column: value})
    return series


def known(points, column="x"):
    """The values that were measured."""
    return [value for value in points.values[column] if value is not None]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32) | st.just(NAN), min_size=1, max_size=700),
    st.integers(1, 300),
)
def test_no_peak_and_no_mean_is_lost(values, num_intervals):
    """However often rows were joined and however few pixels there are."""
    series = series_of(values)
    measured = [value for value in values if not math.isnan(value)]
    points = series.points(PlotRange(num_intervals=num_intervals), ["x"])
    assert len(points.steps) <= 2 * num_intervals + 2
    assert points.steps == sorted(points.steps)
    assert points.at_unix_seconds == points.steps
    assert points.steps[-1] == len(values) - 1
    found = known(points)
    assert bool(found) == bool(measured)
    if measured:
        near = {"rel": 1e-5, "abs": 1e-30}
        assert min(found) == pytest.approx(min(measured), **near)
        assert max(found) == pytest.approx(max(measured), **near)
        (mean,) = known(series.points(PlotRange("step", -1.0, 1e9, 1), ["x"], is_mean=True))
        total = sum(measured) / len(measured)
        assert mean == pytest.approx(total, rel=1e-3, abs=1e-3 * max(map(abs, measured)))


def test_a_million_steps_fit(monkeypatch):
    """Their memory is bounded, and so are the points; a peak of one step is there."""
    monkeypatch.setattr("hetero_hvd.core.view.plots.bounded_series.MAX_ROWS", 256)
    values = [math.sin(step / 50) for step in range(20_000)]
    values[12_345] = 99.0
    series = series_of(values, max_cells=2**18)
    assert series._rows.low.shape[0] <= 256
    points = series.points(PlotRange(num_intervals=100), ["x"])
    assert len(points.steps) <= 202
    peak = points.steps[points.values["x"].index(99.0)]
    assert abs(peak - 12_345) < 20_000 / 100


def test_the_smaller_and_the_larger_come_in_their_order():
    """A line that falls in a pixel is not drawn as if it rose."""
    falls = series_of([9.0, 5.0, 1.0]).points(PlotRange(num_intervals=1), ["x"])
    rises = series_of([1.0, 5.0, 9.0]).points(PlotRange("step", 0, 100, 1), ["x"])
    assert (rises.values["x"], rises.steps) == ([1.0, 9.0], [0, 2])
    assert (falls.values["x"][0], falls.values["x"][-1]) == (9.0, 1.0)


def test_a_part_of_the_run_is_shown_with_its_neighbours():
    """Lines go on to the edges of the plot, over steps and over time."""
    series = series_of(map(float, range(100)), max_cells=2**18)
    for axis in ("step", "time"):
        points = series.points(PlotRange(axis, 40, 60, 500), ["x"])
        assert (points.steps[0], points.steps[-1]) == (39, 61)


@pytest.mark.parametrize(
    "ends", [(0, 1e-300), (500, 600), (0, 1e300), (50, None), (None, 3)], ids=str
)
def test_any_range_is_answered(ends):
    """With what is near to it, where nothing is in it."""
    series = series_of(map(float, range(100)), max_cells=2**18)
    for axis in ("step", "time"):
        points = series.points(PlotRange(axis, *ends, 4096), ["x"])
        assert 1 <= len(points.steps) <= 100


def test_a_clock_that_is_set_back_draws_no_line_back():
    """Times stay where they were until the clock is there again."""
    series = BoundedSeries()
    for step, at in enumerate((10.0, 20.0, 5.0, 30.0)):
        series.add(at, step, {"x": float(step)})
    points = series.points(PlotRange("time", 0, 100, 1000), ["x"])
    assert points.at_unix_seconds == [10.0, 20.0, 20.0, 30.0]


def test_what_was_lost_is_cut_and_done_again():
    """From a checkpoint: the steps after it are there once."""
    series = series_of(map(float, range(20)))
    series.cut(9)
    for step in range(10, 15):
        series.add(100.0 + step, step, {"x": -1.0})
    points = series.points(PlotRange(), ["x"])
    assert points.steps == list(range(15))
    assert points.values["x"][9:11] == [9.0, -1.0]


def test_columns_come_and_go():
    """Before and after it is there a column has gaps; one that never was is all gaps."""
    series = BoundedSeries()
    for step in range(3):
        series.add(float(step), step, {"a": 1.0} | ({f"b{step}": 2.0}))
    points = series.points(PlotRange(), ["a", "b1", "never"])
    assert points.values == {"a": [1.0] * 3, "b1": [None, 2.0, None], "never": [None] * 3}
    for number in range(300):
        series.add(3.0 + number, 3 + number, {f"c{number}": 1.0})
    assert len(series.columns) == 304
    assert series._rows.low.size <= 2**18 * 2


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, 1e39])
def test_what_is_no_number_is_a_gap(value):
    """And what single precision does not hold."""
    points = series_of([1.0, value, 2.0]).points(PlotRange(), ["x"])
    assert points.values["x"] == [1.0, None, 2.0]


def test_steps_weigh_in_the_mean_and_ends_are_kept():
    """A row of nine steps counts nine times; smallest and largest may be told with a mean."""
    series = BoundedSeries()
    series.add(0.0, 8, {"x": 1.0}, 9, ends=(-5.0, 7.0))
    series.add(1.0, 9, {"x": 11.0}, 1)
    one = PlotRange("step", 0, 1000, 1)
    assert series.points(one, ["x"], is_mean=True).values["x"] == [2.0]
    assert sorted(series.points(one, ["x"]).values["x"]) == [-5.0, 11.0]


@pytest.mark.parametrize("sign", [1, -1])
def test_what_rises_or_falls_is_drawn_without_teeth(sign):
    """Of each row only mean and ends are told; the line goes one way all the same."""
    series = BoundedSeries()
    for number in range(1, 20):
        ends = sorted((sign * (number - 1.0), sign * float(number)))
        series.add(float(number), 10 * number, {"x": sign * (number - 0.5)}, ends=tuple(ends))
    values = series.points(PlotRange(), ["x"]).values["x"][2:]
    assert values == sorted(values, reverse=sign < 0)


def test_nothing_is_drawn_of_nothing():
    """And there is at least one row of many columns."""
    assert BoundedSeries().points(PlotRange(), ["x"]).values == {"x": []}
    many = {f"c{number}": 1.0 for number in range(MAX_ROWS)}
    series = BoundedSeries(max_cells=10)
    for step in range(2 * MIN_ROWS):
        series.add(float(step), step, many)
    assert MIN_ROWS // 2 <= len(series.points(PlotRange(), ["c0"]).steps) <= 2 * MIN_ROWS


def test_a_mean_comes_with_its_extremes():
    """So that a plot can show it as one line, and no peak is lost."""
    one = PlotRange("step", -1.0, 1e9, 1)
    points = series_of([1.0, 5.0, 3.0]).points(one, ["x", "y"], is_mean=True)
    assert (points.values["x"], points.lows["x"], points.highs["x"]) == ([3.0], [1.0], [5.0])
    assert points.lows["y"] == [None]
