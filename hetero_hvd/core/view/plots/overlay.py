"""Several runs in each plot, a line for each of them, in the description that all plots have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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

Curve = tuple[list[int], list[float | None]]
"""Steps in order, each once, and the values there; None: not measured."""


def overlaid(views: Sequence[tuple[str, PlotsView]], max_values: int = MAX_VALUES) -> PlotsView:
    """The plots of several runs over their steps.

    Throughput and each loss, evaluation, learning rate and logged value is one plot, with a line
    for each run that has it. What is of a worker has none: other runs have other workers. Between
    two of its points a line is straight, so there it has the values at the points of the others.
    Where the steps of all are too many for that, they are thinned to pixels, and a line has its
    extremes in each. Cost: O(points + values), so memory does not grow with the runs squared.

    Args:
        views: Label of each run, unlike all others, and its plots, over steps.
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
            msgspec.structs.replace(
                plot, key=key, at_unix_seconds=[], **_together(found, max_values)
            )
            for key, (plot, found) in plots.items()
        ],
        marks=_marks(views),
    )


def _together(curves: Mapping[str, Curve], max_values: int) -> dict[str, Any]:
    """Steps and lines of a plot."""
    steps = sorted({step for at, _ in curves.values() for step in at})
    num_pixels = max(MIN_INTERVALS, max_values // (2 * len(curves)))
    pixels = _pixels(steps, num_pixels) if len(steps) > 2 * num_pixels else None
    if pixels is not None:  # two points for each, or one where there is but one step in it
        steps = sorted({step for pixel in pixels for step in pixel})
    lines = []
    for label, curve in curves.items():
        values = _values_at(steps, curve)
        if pixels is not None:
            values = _with_extremes(pixels, values, curve)
        lines.append(PlotLine(label=label, values=values))
    return {"steps": steps, "lines": lines}


def _pixels(steps: Sequence[int], num_pixels: int) -> list[tuple[int, int]]:
    """First and last of the steps in each of so many equal parts that has any."""
    width = (steps[-1] - steps[0]) / num_pixels
    found: dict[int, tuple[int, int]] = {}
    for step in steps:
        number = min(num_pixels - 1, int((step - steps[0]) / width))
        found[number] = found.get(number, (step, step))[0], step
    return list(found.values())


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
