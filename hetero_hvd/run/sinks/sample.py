"""A run as samples: a number each, with its name, step and time; the same live and afterwards."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.quality import LOSS, RATE, is_learning_rate, progress_ratio
from hetero_hvd.messages import CheckpointWritten, Evaluated, Logged
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.rollup import COLUMNS, PHASES, WHOLE_STEP, Rollups

Row = dict[str, Any]


class Sample(NamedTuple):
    """One number.

    Attributes:
        at_unix_seconds: When it was heard of, seconds since 1970; of what is measured over an
            interval its beginning.
        step: Applied steps.
        family: What it is, by the name of its metric in `metric_names` or `sample_metrics`; else
            by that of another program's figure.
        labels: Which of the family.
        path: The same as one name: `run/loss`, `evaluation/accuracy`, `alpha:0/forward_seconds`.
        value: May be NaN or infinite, if a script has logged that.
    """

    at_unix_seconds: float
    step: int
    family: str
    labels: dict[str, str]
    path: str
    value: float


def samples_of_event(at_unix_seconds: float, event: Observed) -> Iterator[Sample]:
    """What an event tells; nothing of most."""
    match event:
        case Evaluated():
            for name, mean in event.metrics.items():
                labels, path = {"metric": name}, f"evaluation/{name}"
                yield Sample(at_unix_seconds, event.step, "evaluation", labels, path, mean)
        case Logged():
            for name, found in event.values.items():
                yield Sample(at_unix_seconds, found.step, *_of_logged(name), found.mean)
            yield _of_run(at_unix_seconds, event.step, "epoch", float(event.epoch))
            if (done := progress_ratio(event)) is not None:
                yield _of_run(at_unix_seconds, event.step, "progress_ratio", done)
        case CheckpointWritten():
            step, value = event.step, float(event.step)
            yield _of_run(at_unix_seconds, step, "checkpoint_step", value)
            if event.is_best:
                yield _of_run(at_unix_seconds, step, "best_checkpoint_step", value)


def samples_of_interval(rows: Sequence[Row]) -> Iterator[Sample]:
    """What the rollups of one interval tell, those of all workers together."""
    at = rows[0]["at_unix_seconds"]
    step = int(max(row["last_step"] for row in rows)) + 1
    told = (row["step_seconds"] for row in rows)
    seconds = max((each for each in told if each is not None and each > 0), default=0.0)
    if seconds > 0:
        samples = sum(row["samples"] for row in rows)
        yield _of_run(at, step, "samples_per_second", samples / seconds)
    for row in rows:
        worker, num_steps = row["worker"], row["num_steps"]
        if not num_steps:
            continue
        size = row["samples"] / num_steps
        path = f"{worker}/local_batch_size"
        yield Sample(at, step, "worker_local_batch_size", {"worker": worker}, path, size)
        for column in PHASES:
            if (total := row[column]) is not None and total == total:  # noqa: PLR0124 - not NaN
                labels, family = {"worker": worker}, f"worker_{column}"
                if column != WHOLE_STEP:
                    labels["phase"] = column.removesuffix("_seconds")
                    family = "worker_phase_seconds"
                yield Sample(at, step, family, labels, f"{worker}/{column}", total / num_steps)


def samples_of_record(record: Record, *, is_whole: bool = True) -> Iterator[Sample]:
    """All that was recorded, by time.

    Args:
        record: What was read.
        is_whole: Whether nothing follows: else the newest interval, which grows, is left out.
    """
    newest = record.rollups[-1]["at_unix_seconds"] if record.rollups else 0.0
    by_time = itemgetter("at_unix_seconds")
    rollups = (row for row in record.rollups if is_whole or by_time(row) < newest)
    intervals = ((at, list(rows)) for at, rows in groupby(rollups, key=by_time))
    measured = ((at, samples_of_interval(rows)) for at, rows in intervals)
    told = ((at, samples_of_event(at, event)) for at, event in record.events)
    logged = ((at, samples_of_event(at, event)) for at, event in record.logged)
    for _, found in heapq.merge(measured, told, logged, key=itemgetter(0)):
        yield from found


class LiveSamples:
    """Folds a run's events as they come; gives what `samples_of_record` would give afterwards."""

    def __init__(self) -> None:
        self._rollups = Rollups()
        self._rows: dict[str, Row] = {}

    def take(self, at_unix_seconds: float, event: Observed) -> Iterator[Sample]:
        """What is known by this event; an interval is, when another one begins."""
        if not isinstance(event, StepTable):
            yield from samples_of_event(at_unix_seconds, event)
            return
        for values in self._rollups.timed(at_unix_seconds, event):
            row = dict(zip(COLUMNS, values, strict=True))
            if any(row["at_unix_seconds"] > own["at_unix_seconds"] for own in self._rows.values()):
                yield from self.rest()
            self._rows[row["worker"]] = row

    def rest(self) -> Iterator[Sample]:
        """The interval under way, as far as it has come."""
        rows, self._rows = list(self._rows.values()), {}
        if rows:
            yield from samples_of_interval(sorted(rows, key=itemgetter("worker")))


def latest(samples: Iterable[Sample]) -> dict[str, Sample]:
    """The newest sample of each path."""
    return {sample.path: sample for sample in samples}


def _of_run(at_unix_seconds: float, step: int, family: str, value: float) -> Sample:
    return Sample(at_unix_seconds, step, family, {}, f"run/{family}", value)


def _of_logged(name: str) -> tuple[str, dict[str, str], str]:
    """Family, labels and path of what was logged by this name."""
    if name == LOSS:
        return name, {}, f"run/{name}"
    if is_learning_rate(name):
        return RATE, {"group": name.partition(".")[2] or "0"}, f"run/{name}"
    return "logged", {"name": name}, f"logged/{name}"
