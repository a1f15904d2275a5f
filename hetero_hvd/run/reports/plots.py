"""The plots of a run as PNG, PDF or SVG; the only module that imports matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hetero_hvd.errors import JobError
from hetero_hvd.messages import PHASES
from hetero_hvd.run.reports.series import Series

COLOURS = {"reset": "#b91c1c", "plan": "#9ca3af", "straggler": "#d97706"}
WIDTH_INCHES, PLOT_INCHES = 10.0, 2.4


def draw(series: Series, path: Path) -> None:
    """Draw throughput, shares and each worker's phases over the steps.

    Args:
        series: Of the run.
        path: Its suffix says what kind of file to write.

    Raises:
        JobError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise JobError(f"{path}: needs matplotlib: pip install 'hetero_hvd[plots]'") from error
    names = list(series.shares)
    figure = Figure(figsize=(WIDTH_INCHES, PLOT_INCHES * (2 + len(names))), layout="constrained")
    axes = figure.subplots(2 + len(names), 1, sharex=True, squeeze=False)[:, 0]
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
