"""What a record says of one moment of a run: how fast it was then, who was slow, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.errors import UserError
from hetero_hvd.messages import (
    BatchPlan,
    Event,
    Finding,
    Judged,
    RunEnded,
    RunStarted,
    StallReported,
    StragglerReported,
    WorkerExited,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.rollup import INTERVAL_SECONDS
from hetero_hvd.run.reports.facts import facts_of, intervals_of, throughput

AROUND_SECONDS = 60.0
"""Before and after the moment, in which what happened is told."""

SLOW_RATIO = 0.9
"""Of the run's mean: what is below it is called slow."""

MAX_HAPPENED = 20


@dataclass
class _Standing:
    """What had begun and was not over: who was slow, a stall, and what was said of all."""

    is_over: bool = False
    slow: dict[WorkerId, StragglerReported] = field(default_factory=dict)
    stall: StallReported | None = None
    findings: tuple[Finding, ...] = ()

    def observe(self, event: Event) -> None:
        """Take in the next event; what was so in one start of a run says nothing of another."""
        match event:
            case RunStarted() | RunEnded():
                self.is_over = isinstance(event, RunEnded)
                self.slow = {}
                self.stall = None
                self.findings = ()
            case WorkersJoined():
                members = event.workers
                self.slow = {
                    worker: said for worker, said in self.slow.items() if worker in members
                }
            case StragglerReported() if event.is_slow:
                self.slow[event.worker] = event
            case StragglerReported() | WorkerStarted() | WorkerExited():
                self.slow.pop(event.worker, None)
            case StallReported():
                self.stall = event if event.is_stalled else None
            case Judged():
                self.findings = event.findings
            case _:
                pass


def said_of(record: Record, at_unix_seconds: float) -> Iterator[str]:
    """Lines for people; times in them are in UTC.

    Args:
        record: Of the run.
        at_unix_seconds: The moment, seconds since 1970.

    Raises:
        UserError: Nothing was recorded then; says from when to when something was.
    """
    facts = facts_of(record)
    if at_unix_seconds % 60 == 0 and 0 < facts.started_at - at_unix_seconds < 60:  # noqa: PLR2004
        at_unix_seconds = facts.started_at  # a time without seconds, as lists show it, is a minute
    if not facts.started_at <= at_unix_seconds <= facts.heard_at + INTERVAL_SECONDS:
        span = f"from {_moment(facts.started_at)} to {_moment(facts.heard_at)}"
        raise UserError(f"--at: {_moment(at_unix_seconds)} is not in the run, which went {span}")
    then = _Standing()
    for at, event in record.events:
        if at <= at_unix_seconds:
            then.observe(event)
    speed = "the run had ended" if then.is_over else _speed(record, at_unix_seconds)
    yield f"at {_moment(at_unix_seconds)}: {speed}"
    for reported in (*then.slow.values(), then.stall):
        if reported is not None:
            yield f"  {event_in_words(reported)}"
    for finding in then.findings:
        yield f"  judged then: {finding}"
    near = [
        (at, words)
        for at, event in record.events
        if abs(at - at_unix_seconds) <= AROUND_SECONDS
        and not isinstance(event, BatchPlan)
        and (words := event_in_words(event))
    ]
    near.sort(key=lambda told: abs(told[0] - at_unix_seconds))
    for at, words in sorted(near[:MAX_HAPPENED]):
        yield f"  {datetime.fromtimestamp(at, UTC):%H:%M:%S}  {words}"


def _speed(record: Record, at_unix_seconds: float) -> str:
    """In the interval of that moment, beside the mean of the run."""
    mean = throughput(record.rollups)
    if not math.isfinite(mean):
        return "no step was measured"
    rows = _rows_of(record, at_unix_seconds)
    if not rows:
        return f"no step was taken then; the mean of the run is {mean:.0f} samples/s"
    then = throughput(rows)
    if not math.isfinite(then):
        return "no step was measured"
    word = "slower than" if then < SLOW_RATIO * mean else "about as fast as"
    return f"{then:.0f} samples/s, {word} the mean of the run ({mean:.0f})"


def _rows_of(record: Record, at_unix_seconds: float) -> list[dict[str, Any]]:
    """Of the steps that were under way; a step counts where it ends, and may have begun before."""
    intervals = intervals_of(record.rollups)
    ends = {start + INTERVAL_SECONDS: rows for start, rows in intervals.items()}
    end = min((end for end in ends if end > at_unix_seconds), default=None)
    if end is None:
        return []
    longest = max(row["step_seconds"] or 0.0 for row in ends[end])
    return ends[end] if end - max(INTERVAL_SECONDS, longest) <= at_unix_seconds else []


def _moment(at_unix_seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at_unix_seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # not a number, or no year that has four digits
        return "no time"
