"""Recorded runs side by side: what was tried differently first, then how good and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.core.view.plots.overlay import overlaid
from hetero_hvd.core.view.plots.run_plots import PlotsView
from hetero_hvd.core.view.run_labels import run_labels
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.catalogue import recorded_run
from hetero_hvd.run.reports.costs import Costs, costs_of
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.series import (
    MAX_POINTS,
    Line,
    ReportContent,
    ReportedSentence,
    lines_of,
    report_of,
)

UNKNOWN = "not measured"
MIN_POINTS = 100
"""Pixels of each run in a plot, however many they are."""


class ComparedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs side by side.

    Attributes:
        labels: What each is called.
        states: How each stands.
        rows: What is told, and its value in each run, in words.
        verdicts: Of each run, in sentences.
        plots: A line for each run in each of them.
    """

    labels: list[str]
    states: list[str]
    rows: list[tuple[str, list[str]]]
    verdicts: list[list[ReportedSentence]]
    plots: PlotsView


def compared(folders: Sequence[Path]) -> ComparedRuns:
    """Read and compare runs.

    Args:
        folders: Output folders of runs, in the order in which they are told.

    Raises:
        JobError: One of them is not recorded there.
    """
    max_points = max(MIN_POINTS, MAX_POINTS // len(folders))
    runs = [report_of(folder, max_points=max_points) for folder in folders]
    labels = run_labels([(run.name, run.run_id) for run in runs])
    views = [(label, run.plots) for label, run in zip(labels, runs, strict=True)]
    return ComparedRuns(
        labels=labels,
        states=[run.state for run in runs],
        rows=list(_rows(runs, [read_run(folder) for folder in folders])),
        verdicts=[run.verdict for run in runs],
        plots=overlaid(views),
    )


def in_words(runs: ComparedRuns) -> Iterator[str]:
    """Lines, each with a value of every run, in their order; then their verdicts."""
    pairs = zip(runs.labels, runs.states, strict=True)
    yield f"runs: {_listed(f'{label} ({state})' for label, state in pairs)}"
    yield from (f"{what}: {_listed(values)}" for what, values in runs.rows)
    for label, verdict in zip(runs.labels, runs.verdicts, strict=True):
        yield from (f"{label}: {judged.words}" for judged in verdict)


def _rows(
    runs: Sequence[ReportContent], records: Sequence[Record]
) -> Iterator[tuple[str, list[str]]]:
    """What was tried in another way, how good, how fast, at what cost, with which shares."""
    for name, values in _unequal([_tried(record) for record in records]):
        yield name, ["unknown" if value is None else value for value in values]
    metrics = [facts_of(record).metrics for record in records]
    for name in sorted({name for found in metrics for name in found}):
        yield name, [_number(found.get(name)) for found in metrics]
    yield _loss(runs)
    yield "samples/s", _speed(runs)
    yield from _spent([costs_of(record) for record in records])
    for worker in sorted({worker for run in runs for worker in run.plots.workers}):
        yield f"last share of {worker}", [_last_share(run, worker) for run in runs]


def as_plain(folders: Sequence[Path]) -> dict[str, Any]:
    """What is known of each run, and what was tried in another way, ready for JSON.

    Args:
        folders: Output folders of runs.

    Returns:
        `runs`: as `hetero-hvd runs --json` lists them; `different`: name of a tag, a setting or a
        fact of the software to its value in each run, None where a run does not tell it.

    Raises:
        JobError: One of them is not recorded there.
    """
    different = dict(_unequal([_tried(read_run(folder)) for folder in folders]))
    return {"runs": [recorded_run(folder).as_dict() for folder in folders], "different": different}


def _listed(values: Iterable[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} and {last}" if first else last


def _unequal(tried: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str | None]]]:
    for name in dict.fromkeys(name for facts in tried for name in facts):
        values = [facts.get(name) for facts in tried]
        if len(set(values)) > 1 and name != "output":
            yield name, values


def _tried(record: Record) -> dict[str, str]:
    """What was tried in a run, by name: tags first, settings, then what it stands on."""
    for _, event in record.events:
        if isinstance(event, RunStarted):
            tags = {f"tag.{name}": value for name, value in event.tags.items()}
            own = {"command": " ".join(event.command), "nodes": " + ".join(event.nodes)}
            return {"name": event.name or "none"} | tags | own | event.settings | event.origin
    return {}


def _speed(runs: Sequence[ReportContent]) -> list[str]:
    """Samples per second, and each as a change from the first."""
    first = runs[0].samples_per_second
    shown = []
    for run in runs:
        speed = run.samples_per_second
        is_other = run is not runs[0]
        change = f" ({speed / first - 1:+.1%})" if is_other and speed and first else ""
        shown.append((UNKNOWN if speed is None else f"{speed:.0f}") + change)
    return shown


def _spent(costs: Sequence[Costs]) -> Iterator[tuple[str, list[str]]]:
    """Money and energy, where at least one run has any."""
    bills = [found.run.bill for found in costs]
    if any(bill.cost is not None for bill in bills):
        shown = []
        for bill in bills:
            without = f" without {', '.join(bill.unpriced)}" if bill.unpriced else ""
            shown.append("not known" if bill.cost is None else f"{bill.cost:.4g}{without}")
        yield "cost", shown
    each = [found.per_sample(found.run.bill.cost) for found in costs]
    if any(each):
        shown = [UNKNOWN if cost is None else f"{cost * 1e6:.4g}" for cost in each]
        yield "cost per million samples", shown
    if any(found.run.joules for found in costs):
        yield "joules", [_number(found.run.joules) for found in costs]
        yield "joules per sample", [_number(c.per_sample(c.run.joules)) for c in costs]


def _loss(runs: Sequence[ReportContent]) -> tuple[str, list[str]]:
    """At the last step that all have reached, as near as the points are."""
    lines = [next(iter(lines_of(run.plots, "loss").values()), Line([], [])) for run in runs]
    if not all(line.steps for line in lines):
        return "loss", [UNKNOWN]
    step = min(line.steps[-1] for line in lines)
    found = []
    for line in lines:
        index = max((i for i, at in enumerate(line.steps) if at <= step), default=0)
        found.append(_number(line.values[index]))
    return f"loss at step {step}", found


def _last_share(run: ReportContent, worker: str) -> str:
    """Of the newest whole batch in which it was."""
    line = lines_of(run.plots, "shares").get(worker, Line([], []))
    return _number(next((value for value in reversed(line.values) if value is not None), None))


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
