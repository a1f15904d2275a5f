"""Several runs in each plot, a line for each of them, in the description that all plots have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.run_plots import (
    LOSS_KEYS,
    MAX_MARKS,
    MAX_VALUES,
    MIN_INTERVALS,
    PER_WORKER,
    PlotLine,
    PlotMark,
    PlotsView,
    RunPlot,
)

ALL_STEPS = PlotRange(axis="step")

Curve = tuple[list[int], list[float | None]]
"""Steps in order, each once, and the values there; None: not measured."""


def overlaid(
    views: Sequence[tuple[str, PlotsView]],
    wanted: PlotRange = ALL_STEPS,
    max_values: int = MAX_VALUES,
) -> PlotsView:
    """The plots of several runs over their steps.

    Throughput and each loss, evaluation, learning rate and logged value is one plot, with a line
    for each run that has it. What is of a worker has none: other runs have other workers. Between
    two of its points a line is straight, so there it has the values at the points of the others.
    Where the steps of all are too many for that, they are thinned to pixels, and a line has its
    extremes in each. Cost: O(points + values), so memory does not grow with the runs squared.

    Args:
        views: Label of each run, unlike all others, and its plots, over steps.
        wanted: Which part they are of, over steps.
        max_values: Of a plot, all lines together, as long as each has `MIN_INTERVALS` pixels.

    Returns:
        Plots and marks over steps; they have no times, as a step is another time in each run.
    """
    plots: dict[str, tuple[RunPlot, dict[str, Curve]]] = {}
    for label, view in views:
        for plot in view.plots:
            if plot.is_stacked or plot.key in PER_WORKER:
                continue
            key = LOSS_KEYS[0] if plot.key in LOSS_KEYS else plot.key
            _, curves = plots.setdefault(key, (plot, {}))
            curves[label] = _curve(plot)
    firsts = [view.first_step for _, view in views if view.first_step is not None]
    lasts = [view.last_step for _, view in views if view.last_step is not None]
    return PlotsView(
        workers=[],
        first_step=min(firsts, default=None),
        last_step=max(lasts, default=None),
        first_unix_seconds=None,
        last_unix_seconds=None,
        plots=[
            _together(msgspec.structs.replace(plot, key=key), found, wanted, max_values)
            for key, (plot, found) in plots.items()
        ],
        marks=_marks(views),
    )


def _together(
    plot: RunPlot, curves: Mapping[str, Curve], wanted: PlotRange, max_values: int
) -> RunPlot:
    steps = sorted({step for at, _ in curves.values() for step in at})
    most = max(MIN_INTERVALS, max_values // (2 * len(curves)))
    pixels = _pixels(steps, wanted._replace(num_intervals=min(wanted.num_intervals, most)))
    steps = sorted({step for pixel in pixels for step in pixel})
    lines = [
        PlotLine(label=label, values=_with_extremes(pixels, _values_at(steps, curve), curve))
        for label, curve in curves.items()
    ]
    return msgspec.structs.replace(plot, steps=steps, at_unix_seconds=[], lines=lines)


def _pixels(steps: Sequence[int], wanted: PlotRange) -> list[tuple[int, int]]:
    """First and last of the steps in each pixel that has any.

    Each step is one by itself where two points for each pixel are enough, and out of the range:
    there are the points from which lines come in, and they may be far away.
    """
    alone = [(step, step) for step in steps]
    left = 0 if wanted.begin is None else bisect_left(steps, wanted.begin)
    right = len(steps) if wanted.end is None else bisect_right(steps, wanted.end)
    if right - left <= 2 * wanted.num_intervals:
        return alone
    begin, end = steps[left], steps[right - 1]
    width = (end - begin) / wanted.num_intervals
    found: dict[int, tuple[int, int]] = {}
    for step in steps[left:right]:
        number = min(wanted.num_intervals - 1, int((step - begin) / width))
        found[number] = found.get(number, (step, step))[0], step
    return [*alone[:left], *found.values(), *alone[right:]]


def _with_extremes(
    pixels: Sequence[tuple[int, int]], values: Sequence[float | None], curve: Curve
) -> list[float | None]:
    """A line at both ends of each pixel, with its extremes there, in their order.

    Those are of what was measured in the pixel and of the line at its ends; a pixel in which
    nothing was measured has but its ends. So a value is out of place by less than a pixel.
    """
    at, measured = curve
    ends, found = iter(values), []
    for first, last in pixels:
        own = [next(ends)] if first == last else [next(ends), next(ends)]
        inside = measured[bisect_left(at, first) : bisect_right(at, last)]
        known = [value for value in (own[0], *inside, own[-1]) if value is not None]
        if first != last and any(value is not None for value in inside):
            low, high = min(known), max(known)
            own = [low, high] if known.index(low) < known.index(high) else [high, low]
        found += own
    return found


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


def _marks(views: Sequence[tuple[str, PlotsView]]) -> list[PlotMark]:
    """What happened to each, but for plans, which are of its workers."""
    marks = [
        msgspec.structs.replace(mark, words=f"{label}: {mark.words}")
        for label, view in views
        for mark in view.marks
        if mark.kind != "plan"
    ]
    return sorted(marks, key=lambda mark: mark.step)[:MAX_MARKS]
