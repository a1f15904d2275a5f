"""Several runs in one plot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.view.plots.overlay import overlaid
from hetero_hvd.core.view.plots.run_plots import PlotLine, PlotMark, PlotsView, RunPlot

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
    found = overlaid({str(number): view_of(points) for number, points in enumerate(runs)})
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
    views = {"a": view_of({1: 1.0}), "b": view_of({1: 2.0}, key="loss loss")}
    (plot,) = overlaid(views).plots
    assert [(line.label, line.values) for line in plot.lines] == [("a", [1.0]), ("b", [2.0])]


def test_marks_say_whose_they_are():
    """But for plans, which are many, and of its own workers."""
    marks = [
        PlotMark(at_unix_seconds=9.0, step=7, kind="fault", words="it crashed"),
        PlotMark(at_unix_seconds=1.0, step=3, kind="plan", words="shares"),
    ]
    other = [PlotMark(at_unix_seconds=1.0, step=5, kind="stall", words="it waits")]
    found = overlaid({"a": view_of({1: 1.0}, marks), "b": view_of({1: 1.0}, other)}).marks
    assert [(mark.step, mark.words) for mark in found] == [(5, "b: it waits"), (7, "a: it crashed")]
