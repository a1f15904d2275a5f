"""A recorded run as series over its steps: what its plots show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.core.step_table import StepTable, with_tables
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.messages import (
    PHASES,
    STEP_PARTS,
    BatchPlan,
    Event,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.reader import history, read_record
from hetero_hvd.run.reports.facts import RunFacts, facts_of

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
        samples_per_second: Mean over the run; None: not measured.
        steps: Last step of each point.
        at_unix_seconds: When it was heard of.
        throughput: Samples per second of the whole job.
        loss: Of the last step of each point.
        shares: Worker to samples per step.
        phases: Worker to phase to seconds per step.
        colours: Phase in words to the colour that it has everywhere.
        marks: What happened.
    """

    run_id: str
    state: str
    verdict: list[str]
    samples_per_second: float | None
    steps: list[int]
    at_unix_seconds: list[float]
    throughput: list[float | None]
    loss: list[float | None]
    shares: dict[str, list[float | None]]
    phases: dict[str, dict[str, list[float | None]]]
    colours: dict[str, str]
    marks: list[Mark]


def series_of(folder: Path, *, max_points: int = MAX_POINTS) -> Series:
    """Read a run; neighbouring exchanges are averaged where there are more than points.

    Args:
        folder: Of the run.
        max_points: At most so many.

    Raises:
        JobError: It is not recorded there.
    """
    facts = facts_of(read_record(folder))
    tables: list[Timed] = []
    marks: list[Mark] = []
    shares: tuple[int, ...] = ()
    for at_seconds, event in with_tables(history(folder)):
        if isinstance(event, StepTable):
            if not event.is_first:  # that has the start in it
                tables.append((at_seconds, event))
            continue
        if isinstance(event, WorkersJoined):
            # What was lost with its workers is done again from a checkpoint.
            tables = [found for found in tables if found[1].step < event.applied_steps]
        if isinstance(event, BatchPlan):
            before, shares = shares, event.local_batch_sizes
            if shares == before:  # it changes the pace of the exchange only
                continue
        if mark := _mark(event):
            marks.append(mark)
    size = max(1, math.ceil(len(tables) / max_points))
    points = [tables[start : start + size] for start in range(0, len(tables), size)]
    return _series(facts, folder, points, marks[-MAX_MARKS:])


def _mark(event: Event) -> Mark | None:
    """What is worth a line in the plots."""
    words = event_in_words(event) or ""
    match event:
        case WorkersJoined():
            return Mark(step=event.applied_steps, kind="reset", words=words)
        case BatchPlan():
            return Mark(step=event.from_step, kind="plan", words=words)
        case StragglerReported():
            return Mark(step=event.step, kind="straggler", words=words)
    return None


def _series(
    facts: RunFacts, folder: Path, points: Sequence[Sequence[Timed]], marks: list[Mark]
) -> Series:
    names = sorted({worker for point in points for _, table in point for worker in table.measured})
    rows = {str(name): [_rows(point, name) for point in points] for name in names}
    speed = facts.samples_per_second
    return Series(
        run_id=facts.run_id or folder.absolute().name,
        state=facts.state,
        verdict=list(map(str, facts.findings)),
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
