"""A recorded run as series over its steps: what its plots show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.core.step_table import StepTable
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.messages import (
    PHASES,
    STEP_PARTS,
    BatchPlan,
    Event,
    SetAsideReported,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.advice import beyond_the_verdict
from hetero_hvd.run.reports.costs import costs_of, in_words
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.intervals import observed
from hetero_hvd.run.reports.quality import Curve, curves_of, quality_lines

MAX_POINTS = 500
MAX_MARKS = 500

Timed = tuple[float, StepTable]
"""A table, and when it was heard of, seconds since 1970."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        step: At which step.
        kind: `reset`, `plan` or `straggler`.
        words: For people.
    """

    step: int
    kind: str
    words: str


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The run over its steps; all lists are as long as `steps`, unmeasured is None.

    Attributes:
        run_id: See `RunStarted`.
        state: As in `RunFacts`.
        verdict: In sentences.
        advice: What is to be changed beside what the verdict says, in sentences.
        spent: What it cost, in lines; none where nothing is known of it.
        samples_per_second: Mean over the run; None: not measured.
        steps: Last step of each point.
        at_unix_seconds: When it was heard of.
        throughput: Samples per second of the whole job.
        loss: Of the last step of each point.
        shares: Worker to samples per step.
        phases: Worker to phase to seconds per step.
        colours: Phase in words to the colour that it has everywhere.
        marks: What happened.
        curves: Of its quality, each with steps of its own.
        achieved: The same in words, with the checkpoints.
    """

    run_id: str
    state: str
    verdict: list[str]
    advice: list[str]
    spent: list[str]
    samples_per_second: float | None
    steps: list[int]
    at_unix_seconds: list[float]
    throughput: list[float | None]
    loss: list[float | None]
    shares: dict[str, list[float | None]]
    phases: dict[str, dict[str, list[float | None]]]
    colours: dict[str, str]
    marks: list[Mark]
    curves: list[Curve]
    achieved: list[str]


def series_of(folder: Path, *, max_points: int = MAX_POINTS) -> Series:
    """Read a run; neighbouring exchanges are averaged where there are more than points.

    Args:
        folder: Of the run.
        max_points: At most so many.

    Raises:
        JobError: It is not recorded there.
    """
    record = read_run(folder)
    tables: list[Timed] = []
    marks: list[Mark] = []
    shares: tuple[int, ...] = ()
    for at_seconds, event in observed(folder, record):
        if isinstance(event, StepTable):
            if not event.is_first:  # that has the start in it
                tables.append((at_seconds, event))
            continue
        if isinstance(event, WorkersJoined):
            # What was lost with its workers is done again from a checkpoint.
            tables = [found for found in tables if found[1].step < event.applied_steps]
        if isinstance(event, BatchPlan):
            if event.calibration_ratio:  # no step is taken by it
                continue
            before, shares = shares, event.local_batch_sizes
            if shares == before:  # it changes the pace of the exchange only
                continue
        if mark := _mark(event):
            marks.append(mark)
    points = list(_points(tables, max_points))
    return _series(record, folder, points, marks[-MAX_MARKS:])


def _points(tables: Sequence[Timed], max_points: int) -> Iterator[list[Timed]]:
    """Neighbours together, each point with as many steps as the others."""
    if len(tables) <= max_points:
        yield from ([found] for found in tables)
        return
    first, last = tables[0][1].step, max(table.step for _, table in tables)
    width = (last - first + 1) / max_points
    for _, found in groupby(tables, key=lambda found: int((found[1].step - first) / width)):
        yield list(found)


def _mark(event: Event) -> Mark | None:
    """What is worth a line in the plots."""
    words = event_in_words(event) or ""
    match event:
        case WorkersJoined():
            return Mark(step=event.applied_steps, kind="reset", words=words)
        case SetAsideReported():
            return Mark(step=event.step, kind="reset", words=words)
        case BatchPlan():
            return Mark(step=event.from_step, kind="plan", words=words)
        case StragglerReported():
            return Mark(step=event.step, kind="straggler", words=words)
    return None


def _series(
    record: Record, folder: Path, points: Sequence[Sequence[Timed]], marks: list[Mark]
) -> Series:
    facts, costs = facts_of(record), costs_of(record)
    names = sorted({worker for point in points for _, table in point for worker in table.measured})
    rows = {str(name): [_rows(point, name) for point in points] for name in names}
    speed = facts.samples_per_second
    return Series(
        run_id=facts.run_id or folder.absolute().name,
        state=facts.state,
        verdict=list(map(str, facts.findings)),
        advice=beyond_the_verdict(record, costs, folder),
        spent=list(in_words(costs)),
        samples_per_second=speed if math.isfinite(speed) else None,
        steps=[point[-1][1].step for point in points],
        at_unix_seconds=[point[-1][0] for point in points],
        throughput=[_throughput(point) for point in points],
        loss=[_measured(point[-1][1].event.loss) for point in points],
        shares={name: [_mean(found, "local_batch_size") for found in rows[name]] for name in rows},
        phases={
            name: {
                phase: [_mean(found, f"{phase}_seconds") for found in rows[name]]
                for phase in PHASES
            }
            for name in rows
        },
        colours={part.words: part.colour for part in STEP_PARTS},
        marks=marks,
        curves=curves_of(record),
        achieved=list(quality_lines(record)),
    )


def _rows(point: Sequence[Timed], worker: WorkerId) -> list[StepTiming]:
    return [table.measured[worker] for _, table in point if worker in table.measured]


def _mean(rows: Sequence[StepTiming], field: str) -> float | None:
    steps = sum(row.num_steps for row in rows)
    if not steps:
        return None
    return _measured(sum(row.num_steps * getattr(row, field) for row in rows) / steps)


def _throughput(point: Sequence[Timed]) -> float | None:
    """Samples / duration of all steps."""
    samples = sum(table.num_steps * table.samples_per_step for _, table in point)
    seconds = sum(table.num_steps * table.step_seconds for _, table in point)
    return _measured(samples / seconds) if seconds > 0 else None


def _measured(value: Any) -> float | None:  # noqa: ANN401 - a field's value
    return float(value) if math.isfinite(value) else None
