"""The plots of a run as PNG, PDF or SVG; the only module that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from hetero_hvd.core.recording.device_figures import GAP_INTERVALS
from hetero_hvd.core.recording.sessions import MAX_EVERY_SECONDS
from hetero_hvd.core.view.plots.run_plots import PlotsView
from hetero_hvd.errors import JobError, job_error
from hetero_hvd.run.recordings.folder import RecordingFacts
from hetero_hvd.run.records.samples import THE_NODE

COLOURS = {
    "reset": "#b91c1c",
    "fault": "#b91c1c",
    "stall": "#b91c1c",
    "straggler": "#b45309",
    "plan": "#5b6068",
}
"""Of marks, as on the pages."""

LINES = (
    "#2563eb", "#047857", "#b45309", "#7c3aed", "#dc2626", "#0e7490", "#be185d", "#4d7c0f",
)  # fmt: skip
"""Of lines, as `--series-1` and so on of the pages by day."""

FIGURES = ("use_ratio", "memory_used_bytes", "power_watts", "temperature_celsius")
PLOTTED = ("at_unix_seconds", "node", "device", "uuid", "seconds", *(f"{f}_mean" for f in FIGURES))
"""Columns of a recording's samples that are drawn."""

MAX_LEGEND = 16
RATIO_LIMITS = (-0.02, 1.02)
"""Of the axis of a ratio: a difference of a thousandth is not to look like much."""

MAX_PHASES = 16
"""Plots of phases in a file, a worker each; a page has those of all."""

TRUETYPE = 42
"""Fonts as they are, so that text can be edited and searched; Type 3 is refused by many."""

WIDTH_INCHES, PLOT_INCHES = 10.0, 2.4


def draw(view: PlotsView, title: str, path: Path) -> None:
    """Draw all plots of a run, or of several, over their steps, one below the other.

    Args:
        view: Of a run, or of several.
        title: Of the file.
        path: Its suffix says what kind of file to write.

    Raises:
        JobError: matplotlib is not installed, or the file cannot be written.
    """
    whole = [plot for plot in view.plots if not plot.is_stacked]
    phases = [plot for plot in view.plots if plot.is_stacked]
    plots = whole + phases[:MAX_PHASES]
    figure, axes = _axes(len(plots), path)
    axes[0].set(title=_literal(title))
    for axis, plot in zip(axes, plots, strict=True):
        known = [_known(line.values) for line in plot.lines]
        labels = [_literal(line.label) for line in plot.lines]
        if plot.is_stacked:
            heights = [[0.0 if math.isnan(v) else v for v in values] for values in known]
            colours = [line.colour for line in plot.lines]
            axis.stackplot(plot.steps, heights, labels=labels, colors=colours)
        else:
            for label, values, line in zip(labels, known, plot.lines, strict=True):
                over = 2.0 if not line.colour else 1.5  # what has no colour of its own lies above
                colour = line.colour or None
                axis.plot(plot.steps, values, label=label, linewidth=1, color=colour, zorder=over)
        if plot.has_zero:
            axis.set(ylim=(0, None))
        axis.set(ylabel=_literal(f"{plot.title}\n{plot.unit}"))
        if 1 < len(labels) <= MAX_LEGEND:
            where = "lower left" if plot.is_stacked else "best"  # on no line, nor on a peak
            axis.legend(loc=where, fontsize="x-small", ncols=4)
        for mark in view.marks:  # what is planned often stands at the foot alone
            top = 0.06 if mark.kind == "plan" else 1.0
            axis.axvline(mark.step, ymax=top, color=COLOURS[mark.kind], linewidth=0.8)
    num_left_out = len(phases) - MAX_PHASES
    more = f"; the phases of {num_left_out} more workers are in report.html"
    figure.align_ylabels(axes)
    axes[-1].set(xlabel="step" + (more if num_left_out > 0 else ""))
    _save(figure, path)


def draw_recording(facts: RecordingFacts, rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw what the devices of a recording did over its time; what is missing is a gap.

    Args:
        facts: Of the recording.
        rows: Of its samples, each by itself or the means of some, with the columns `PLOTTED`, in
            any order.
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
            device: list(_with_gaps(sorted(points, key=itemgetter(0)), facts.every_seconds))
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
    usual = min(MAX_EVERY_SECONDS, max(every_seconds, median(steps or [0.0])))
    longest = GAP_INTERVALS * usual
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
    axes = figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]
    for axis in axes:
        axis.set_prop_cycle(color=LINES)
    return figure, axes


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib's Figure
    from matplotlib import rc_context  # noqa: PLC0415 - as above

    if not path.suffix:  # matplotlib would write another file, with a suffix of its own
        raise JobError(f"{path}: what kind of file is it? Its name must end in .png, .pdf or .svg")
    try:
        with rc_context({"pdf.fonttype": TRUETYPE}):
            figure.savefig(path)
    except OSError as error:
        raise job_error(f"{path}: cannot be written: {error.strerror or error}", error) from error
    except ValueError as error:  # it does not know the suffix
        raise JobError(f"{path}: {error}") from error


def _literal(text: str) -> str:
    """As it is: a name is no formula, and none that begins with _ is left out of a legend."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _known(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
