"""The plots of a run as PNG, PDF or SVG; the only module that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hetero_hvd.core.recording.device_figures import GAP_INTERVALS
from hetero_hvd.errors import JobError
from hetero_hvd.messages import PHASES
from hetero_hvd.run.recordings.folder import RecordingFacts
from hetero_hvd.run.records.samples import THE_NODE
from hetero_hvd.run.reports.series import Series

COLOURS = {"reset": "#b91c1c", "plan": "#9ca3af", "straggler": "#d97706"}
FIGURES = ("use_ratio", "memory_used_bytes", "power_watts", "temperature_celsius")
PLOTTED = ("at_unix_seconds", "node", "device", "uuid", "seconds", *(f"{f}_mean" for f in FIGURES))
"""Columns of a recording's samples that are drawn."""

MAX_LEGEND = 16
RATIO_LIMITS = (-0.02, 1.02)
"""Of the axis of a ratio: a difference of a thousandth is not to look like much."""

WIDTH_INCHES, PLOT_INCHES = 10.0, 2.4


def draw(series: Series, path: Path) -> None:
    """Draw throughput, shares and each worker's phases over the steps.

    Args:
        series: Of the run.
        path: Its suffix says what kind of file to write.

    Raises:
        JobError: matplotlib is not installed, or the file cannot be written.
    """
    names = list(series.shares)
    figure, axes = _axes(2 + len(names), path)
    axes[0].plot(series.steps, _known(series.throughput))
    axes[0].set(title=f"{series.run_id}: {series.state}", ylabel="samples/s", ylim=(0, None))
    _stack(axes[1], series.steps, series.shares, "samples per step")
    for axis, name in zip(axes[2:], names, strict=True):
        milliseconds = {
            phase.replace("_", " "): [None if v is None else v * 1e3 for v in values]
            for phase, values in series.phases[name].items()
            if phase in PHASES
        }
        colours = [series.colours[words] for words in milliseconds]
        _stack(axis, series.steps, milliseconds, f"{name}: ms", colours)
    for axis in axes:
        for mark in series.marks:
            axis.axvline(mark.step, color=COLOURS[mark.kind], linewidth=0.8)
    axes[-1].set(xlabel="step")
    _save(figure, path)


def draw_recording(facts: RecordingFacts, rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw what the devices of a recording did over its time; what is missing is a gap.

    Args:
        facts: Of the recording.
        rows: Of its samples, each by itself or the means of some, with the columns `PLOTTED`; those
            of a node in the order of time.
        path: As in `draw`.

    Raises:
        JobError: As in `draw`.
    """
    lines = _lines(facts, rows)
    names = [name for name in FIGURES if lines[name]] or FIGURES[:1]
    figure, axes = _axes(len(names), path)
    for axis, name in zip(axes, names, strict=True):
        for device, points in sorted(lines[name].items()):
            axis.plot(*zip(*points, strict=True), label=device, linewidth=0.8)
        axis.set(ylabel=name.replace("_", " "))
        if name.endswith("_ratio"):
            axis.set(ylim=RATIO_LIMITS)
        if axis.lines and len(axis.lines) <= MAX_LEGEND:
            axis.legend(loc="upper left", fontsize="small", ncols=4)
        for mark in facts.marks:
            at = max(0.0, mark.at_unix_seconds - facts.from_unix_seconds)
            axis.axvline(at, color=COLOURS["reset" if mark.kind == "unhealthy" else "plan"])
    axes[0].set(title=f"{facts.name}: {facts.num_frames} samples, {facts.num_missing} missing")
    axes[-1].set(xlabel="seconds")
    _save(figure, path)


def _lines(
    facts: RecordingFacts, rows: Iterable[dict[str, Any]]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Of each figure, the points of the devices that tell it: seconds since the begin, value."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in FIGURES}
    for row in rows:
        gpu = row["device"]
        device = row["node"] if gpu == THE_NODE else f"{row['node']} GPU {gpu}"
        at = row["at_unix_seconds"] - facts.from_unix_seconds
        for name in FIGURES:
            value = row.get(f"{name}_mean")
            point = at, math.nan if value is None else value
            lines[name].setdefault(device, []).append(point)
    return {
        name: {
            device: list(_with_gaps(points, facts.every_seconds))
            for device, points in of_devices.items()
            if any(math.isfinite(value) for _, value in points)
        }
        for name, of_devices in lines.items()
    }


def _with_gaps(
    points: list[tuple[float, float]], every_seconds: float
) -> Iterator[tuple[float, float]]:
    """The points, and between two that are too far apart one that is none."""
    steps = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    longest = GAP_INTERVALS * max(every_seconds, median(steps or [0.0]))
    for (at, value), step in zip(points, (0.0, *steps), strict=True):
        if step > longest:
            yield at, math.nan
        yield at, value


def draw_completions(hours: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw which part of the jobs of a queue was done in how many hours, a line for each policy.

    Args:
        hours: Policy to the hours from submission to end of each job, > 0.
        path: As in `draw`.

    Raises:
        JobError: As in `draw`.
    """
    figure, (axis,) = _axes(1, path)
    for policy, found in hours.items():
        parts = [(number + 1) / len(found) for number in range(len(found))]
        axis.step(sorted(found), parts, label=policy, where="post")
    axis.set(xscale="log", xlabel="hours from submission to end", ylabel="part of the jobs")
    axis.legend(loc="lower right", fontsize="small")
    _save(figure, path)


def _axes(number: int, path: Path) -> Any:  # noqa: ANN401 - matplotlib's Figure, and its Axes
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise JobError(f"{path}: needs matplotlib: pip install 'hetero_hvd[plots]'") from error
    figure = Figure(figsize=(WIDTH_INCHES, PLOT_INCHES * number), layout="constrained")
    return figure, figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib's Figure
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: it does not know the suffix
        raise JobError(f"{path}: {error}") from error


def _stack(
    axis: Any,  # noqa: ANN401 - matplotlib's Axes
    steps: list[int],
    lines: dict[str, list[float | None]],
    label: str,
    colours: list[str] | None = None,
) -> None:
    heights = [_zeros(line) for line in lines.values()]
    axis.stackplot(steps, heights, labels=list(lines), colors=colours)
    axis.set(ylabel=label)
    axis.legend(loc="upper left", fontsize="small", ncols=len(lines))


def _known(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _zeros(values: list[float | None]) -> list[float]:
    """A stack has no gaps: where a worker was away it did nothing."""
    return [value or 0.0 for value in values]
