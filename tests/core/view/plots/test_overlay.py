"""Several runs in one plot."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.overlay import overlaid
from hetero_hvd.core.view.plots.run_plots import (
    MIN_INTERVALS,
    PlotLine,
    PlotMark,
    PlotsView,
    RunPlot,
    RunPlots,
)
from hetero_hvd.messages import Evaluated, Logged, LoggedValue

POINTS = st.dictionaries(
    st.integers(0, 50), st.none() | st.floats(-1e6, 1e6, allow_nan=False), min_size=1
)


def view_of(points, marks=(), **about):
    """The plots of a run with one curve, step to value, and two plots of its workers."""
    steps = sorted(points)
    values = [points[step] for step in steps]
    told = {"unit": "", "steps": steps, "at_unix_seconds": [float(step) for step in steps]}
    own = [PlotLine(label="Loss", values=values), PlotLine(label="lowest", values=values)]
    plots = [
        RunPlot(title="Loss", lines=own, **{"key": "loss", **told, **about}),
        RunPlot(key="shares", title="Shares", lines=own, **told),
        RunPlot(key="phases a:0", title="Phases of a:0", lines=own, is_stacked=True, **told),
    ]
    return PlotsView(
        workers=["a:0"], first_step=steps[0], last_step=steps[-1], first_unix_seconds=1.0,
        last_unix_seconds=2.0, plots=plots, marks=list(marks),
    )  # fmt: skip


@given(st.lists(POINTS, min_size=1, max_size=4))
def test_each_run_is_the_line_that_it_is_alone(runs):
    """Through its own points, straight between them, with its gaps; nothing before and behind."""
    found = overlaid([(str(number), view_of(points)) for number, points in enumerate(runs)])
    (plot,) = found.plots
    assert plot.steps == sorted({step for points in runs for step in points})
    assert (found.first_step, found.last_step) == (plot.steps[0], plot.steps[-1])
    for line, points in zip(plot.lines, runs, strict=True):
        assert len(line.values) == len(plot.steps)
        for step, value in zip(plot.steps, line.values, strict=True):
            if step in points:
                assert value == points[step]
                continue
            below = max((at for at in points if at < step), default=None)
            above = min((at for at in points if at > step), default=None)
            ends = [points.get(below), points.get(above)]
            if None in ends:
                assert value is None
            else:
                assert min(ends) - 1e-6 <= value <= max(ends) + 1e-6


def test_a_loss_is_one_plot_whoever_tells_it():
    """Of a trainer's own log, and of the exchange where a script tells nothing."""
    views = [("a", view_of({1: 1.0})), ("b", view_of({1: 2.0}, key="loss loss"))]
    (plot,) = overlaid(views).plots
    assert [(line.label, line.values) for line in plot.lines] == [("a", [1.0]), ("b", [2.0])]


SAME_TITLE = {  # figures of one run that are called alike: logged name to the plot it is unlike
    "accuracy": ("evaluation accuracy", "logged accuracy"),
    "Throughput": ("speed", "logged Throughput"),
    "Loss": ("loss loss", "logged Loss"),
}


@pytest.mark.parametrize("logged", SAME_TITLE)
def test_figures_that_are_called_alike_are_told_apart(logged):
    """Each has its own plot, unit and values."""
    runs = RunPlots()
    runs.observe(1.0, Evaluated(step=1, epoch=0, metrics={"accuracy": 0.5}))
    values = {"loss": 2.0, logged: 7.0}
    told = {
        name: LoggedValue(step=1, count=1, mean=value, minimum=value, maximum=value, last=value)
        for name, value in values.items()
    }
    runs.observe(2.0, Logged(step=1, epoch=0, values=told))
    view = runs.view(PlotRange())
    plots = {plot.key: plot for plot in overlaid([("a", view), ("b", view)]).plots}
    other, own = SAME_TITLE[logged]
    assert [line.values for line in plots[own].lines] == [[7.0], [7.0]]
    assert plots[own].unit == "logged"
    kept = plots["loss" if other == "loss loss" else other]
    assert kept.unit != "logged"
    assert all(line.values != [7.0] for line in kept.lines)


MANY = {"two": 2, "of unlike steps": 40, "more than pixels": 400}


@pytest.mark.parametrize("runs", MANY)
def test_a_plot_of_many_points_has_a_bound(runs):
    """Each line keeps its extremes, to a pixel; none is told where nothing was measured."""
    dice = random.Random(runs)  # noqa: S311 - a test
    curves = [
        {
            dice.randrange(begin, begin + 5000): dice.choice([None, dice.random()])
            for _ in range(200)
        }
        for begin in range(0, 10 * MANY[runs], 10)
    ]
    views = [(str(number), view_of(points)) for number, points in enumerate(curves)]
    (plot,) = overlaid(views, max_values=2 * MIN_INTERVALS * MANY[runs]).plots
    assert len(plot.steps) <= 2 * MIN_INTERVALS
    assert plot.steps == sorted(set(plot.steps))
    pixel = 1.01 * (5000 + 10 * MANY[runs]) / MIN_INTERVALS
    for line, points in zip(plot.lines, curves, strict=True):
        known = {step: value for step, value in points.items() if value is not None}
        told = [(s, v) for s, v in zip(plot.steps, line.values, strict=True) if v is not None]
        assert min(v for _, v in told) == min(known.values())
        assert max(v for _, v in told) == max(known.values())
        assert all(any(abs(s - step) <= pixel for step in known) for s, _ in told)


def test_a_part_of_long_runs_is_shown_closely():
    """However far away the points are from which lines come in, or where another run has ended."""
    wanted = PlotRange(begin=90_000, end=91_000, num_intervals=MIN_INTERVALS)
    long = {0: 0.0} | {step: float(step == 90_500) for step in range(90_000, 91_001)} | {10**6: 0.0}
    (plot,) = overlaid([("a", view_of(long)), ("b", view_of({10: 1.0}))], wanted).plots
    inside = [step for step in plot.steps if wanted.begin <= step <= wanted.end]
    assert len(inside) == 2 * MIN_INTERVALS
    (peak,) = [s for s, v in zip(plot.steps, plot.lines[0].values, strict=True) if v == 1.0]
    assert abs(peak - 90_500) <= 20
    told = [s for s, v in zip(plot.steps, plot.lines[1].values, strict=True) if v is not None]
    assert told == [10]


def test_the_memory_of_a_plot_does_not_grow_with_the_runs_squared():
    """Of each run there are as many values, however many there are."""
    views = [(str(n), view_of(dict.fromkeys(range(n, 200 * 400, 400), 1.0))) for n in range(400)]
    (plot,) = overlaid(views).plots
    assert sum(len(line.values) for line in plot.lines) <= 2 * MIN_INTERVALS * 400


def test_marks_say_whose_they_are():
    """But for plans, which are many, and of its own workers."""
    marks = [
        PlotMark(at_unix_seconds=9.0, step=7, kind="fault", words="it crashed"),
        PlotMark(at_unix_seconds=1.0, step=3, kind="plan", words="shares"),
    ]
    other = [PlotMark(at_unix_seconds=1.0, step=5, kind="stall", words="it waits")]
    found = overlaid([("a", view_of({1: 1.0}, marks)), ("b", view_of({1: 1.0}, other))]).marks
    assert [(mark.step, mark.words) for mark in found] == [(5, "b: it waits"), (7, "a: it crashed")]
