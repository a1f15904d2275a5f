"""Several runs in each plot, a line for each of them, in the description that all plots have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from hetero_hvd.core.view.plots.run_plots import (
    MAX_MARKS,
    PER_WORKER,
    PlotLine,
    PlotMark,
    PlotsView,
    RunPlot,
)

Curve = tuple[list[int], list[float | None]]
"""Steps in order, each once, and the values there; None: not measured."""


def overlaid(views: Mapping[str, PlotsView]) -> PlotsView:
    """The plots of several runs over their steps.

    Throughput and each loss, evaluation, learning rate and logged value is one plot, with a line
    for each run that has it. What is of a worker has none: other runs have other workers. Between
    two of its points a line is straight, so there it has the values at the points of the others.
    Cost: O(runs squared x points).

    Args:
        views: Label of each run to its plots, over steps.

    Returns:
        Plots and marks over steps; they have no times, as a step is another time in each run.
    """
    plots: dict[str, tuple[RunPlot, dict[str, Curve]]] = {}
    for label, view in views.items():
        for plot in view.plots:
            if plot.is_stacked or plot.key in PER_WORKER:
                continue
            _, curves = plots.setdefault(plot.title, (plot, {}))
            curves[label] = _curve(plot)
    firsts = [view.first_step for view in views.values() if view.first_step is not None]
    lasts = [view.last_step for view in views.values() if view.last_step is not None]
    return PlotsView(
        workers=[],
        first_step=min(firsts, default=None),
        last_step=max(lasts, default=None),
        first_unix_seconds=None,
        last_unix_seconds=None,
        plots=[_together(plot, curves) for plot, curves in plots.values()],
        marks=_marks(views),
    )


def _together(plot: RunPlot, curves: Mapping[str, Curve]) -> RunPlot:
    steps = sorted({step for at, _ in curves.values() for step in at})
    lines = [
        PlotLine(label=label, values=_values_at(steps, curve)) for label, curve in curves.items()
    ]
    return msgspec.structs.replace(
        plot, key=plot.title, steps=steps, at_unix_seconds=[], lines=lines
    )


def _curve(plot: RunPlot) -> Curve:
    """Of its first line, which is its own; of two points at one step the mean."""
    values = plot.lines[0].values
    found: dict[int, list[float | None]] = {}
    for step, value in zip(plot.steps, values, strict=True):
        found.setdefault(step, []).append(value)
    return [*found], [_mean(several) for several in found.values()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _values_at(steps: Sequence[int], curve: Curve) -> list[float | None]:
    """Of a line through the points of a curve; None before, behind, and beside what is unknown."""
    at, values = curve
    found: list[float | None] = []
    for step in steps:
        index = bisect_left(at, step)
        if index < len(at) and at[index] == step:
            found.append(values[index])
        elif 0 < index < len(at):
            found.append(_between(step, at[index - 1 : index + 1], values[index - 1 : index + 1]))
        else:
            found.append(None)
    return found


def _between(step: int, at: Sequence[int], values: Sequence[float | None]) -> float | None:
    (first, last), (begin, end) = at, values
    if begin is None or end is None:
        return None
    return begin + (end - begin) * (step - first) / (last - first)


def _marks(views: Mapping[str, PlotsView]) -> list[PlotMark]:
    """What happened to each, but for plans, which are of its workers."""
    marks = [
        msgspec.structs.replace(mark, words=f"{label}: {mark.words}")
        for label, view in views.items()
        for mark in view.marks
        if mark.kind != "plan"
    ]
    return sorted(marks, key=lambda mark: mark.step)[:MAX_MARKS]
