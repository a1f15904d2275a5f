"""A recorded run as its report shows it: what it was, what it found, and its plots."""

from __future__ import annotations

import heapq
import math
import shlex
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.core.view.live import Severity, severity_of
from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.run_plots import PlotsView, RunPlots
from hetero_hvd.messages import NodeEquipped, RunStarted
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.advice import beyond_the_verdict
from hetero_hvd.run.reports.costs import costs_of, in_words
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.intervals import observed
from hetero_hvd.run.reports.phases import HEADINGS, phases_of
from hetero_hvd.run.reports.quality import quality_lines

MAX_POINTS = 500


class ReportedSentence(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence of the verdict.

    Attributes:
        words: The sentence.
        severity: How much it matters.
    """

    words: str
    severity: Severity


class PhaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the newer half of the steps, milliseconds.

    Attributes:
        heads: Of the columns after the first, which is the worker.
        rows: A worker and its values; None: not measured.
    """

    heads: list[str]
    rows: list[tuple[str, list[float | None]]]


class ReportContent(msgspec.Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        run_id: See `RunStarted`.
        name: What its user calls it; empty: nothing.
        state: As in `RunFacts`.
        verdict: In sentences.
        advice: What is to be changed beside what the verdict says, in sentences.
        spent: What it cost, in lines; none where nothing is known of it.
        achieved: How good it is, in lines, with the checkpoints.
        samples_per_second: Mean over the run; None: not measured.
        about: Group to (name, value): command, origin, settings, tags, hardware.
        phases: Where its time went.
        plots: All of them, over all of the run.
    """

    run_id: str
    name: str
    state: str
    verdict: list[ReportedSentence]
    advice: list[str]
    spent: list[str]
    achieved: list[str]
    samples_per_second: float | None
    about: dict[str, list[tuple[str, str]]]
    phases: PhaseTable
    plots: PlotsView


class Line(NamedTuple):
    """One line of a plot.

    Attributes:
        steps: Of each point.
        values: None: not measured.
    """

    steps: list[int]
    values: list[float | None]


def report_of(folder: Path, *, max_points: int = MAX_POINTS) -> ReportContent:
    """Read a run.

    Args:
        folder: Of the run.
        max_points: Pixels of a plot: each has at most two points.

    Raises:
        JobError: It is not recorded there.
    """
    record = read_run(folder)
    facts, costs = facts_of(record), costs_of(record)
    speed = facts.samples_per_second
    return ReportContent(
        run_id=facts.run_id or folder.absolute().name,
        name=facts.name,
        state=facts.state,
        verdict=[ReportedSentence(words=str(f), severity=severity_of(f)) for f in facts.findings],
        advice=beyond_the_verdict(record, costs, folder),
        spent=list(in_words(costs)),
        achieved=list(quality_lines(record)),
        samples_per_second=speed if math.isfinite(speed) else None,
        about={group: pairs for group, pairs in _about(record) if pairs},
        phases=_phases(record),
        plots=plots_of(folder, record, max_points),
    )


def plots_of(folder: Path, record: Record, max_points: int = MAX_POINTS) -> PlotsView:
    """The plots of a run; arguments as for `report_of`, and what was read of it."""
    plots = folded(folder, record)
    return plots.view(PlotRange(num_intervals=max_points), plots.workers)


def folded(folder: Path, record: Record) -> RunPlots:
    """What the plots of a run are made of, for any part of it; arguments as for `plots_of`."""
    plots = RunPlots()
    for at_unix_seconds, event in heapq.merge(
        observed(folder, record), record.logged, key=itemgetter(0)
    ):
        plots.observe(at_unix_seconds, event)
    return plots


def lines_of(plots: PlotsView, key: str) -> dict[str, Line]:
    """The lines of a plot by their labels; none where there is no such plot."""
    found = (plot for plot in plots.plots if plot.key == key or plot.key.startswith(f"{key} "))
    plot = next(found, None)
    return (
        {} if plot is None else {line.label: Line(plot.steps, line.values) for line in plot.lines}
    )


def _about(record: Record) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """What was started, with what, and on what; of a run that was resumed the newest start."""
    events = [event for _, event in record.events]
    started = [event for event in events if isinstance(event, RunStarted)][-1:]
    for event in started:
        yield "Command", [("command", shlex.join(event.command))] if event.command else []
        yield "Tags", [*event.tags.items()]
        yield "Code and versions", [*event.origin.items()]
        yield "Settings", [*event.settings.items()]
    equipped = {event.node: event for event in events if isinstance(event, NodeEquipped)}
    yield "Hardware", [(node, _equipment(event)) for node, event in sorted(equipped.items())]


def _equipment(event: NodeEquipped) -> str:
    gpus: dict[str, int] = {}
    for device in event.devices:
        gpus[device.name] = gpus.get(device.name, 0) + 1
    parts = [
        *(f"{count} x {name}" for name, count in gpus.items()),
        event.processor,
        f"{event.num_cpus} CPUs" if event.num_cpus else "",
        f"{event.memory_bytes / 2**30:.0f} GiB" if math.isfinite(event.memory_bytes) else "",
        *(
            f"{name} {bits / 1e9:g} Gbit/s" if math.isfinite(bits) else name
            for name, bits in event.interfaces.items()
        ),
        event.system,
        f"driver {event.gpu_driver}" if event.gpu_driver else "",
        f"CUDA {event.cuda}" if event.cuda else "",
    ]
    return ", ".join(filter(None, parts))


def _phases(record: Record) -> PhaseTable:
    rows = [
        (each.worker, [each.step_seconds, *each.phases.values(), each.lateness_seconds])
        for each in phases_of(record)
    ]
    return PhaseTable(
        heads=["step", *HEADINGS.values(), "late"],
        rows=[
            (name, [round(1e3 * v, 2) if math.isfinite(v) else None for v in values])
            for name, values in rows
        ],
    )
