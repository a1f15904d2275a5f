"""What a record says of one moment of a run: how fast it was then, who was slow, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.errors import UserError
from hetero_hvd.messages import BatchPlan, Event, Judged, StallReported, StragglerReported, WorkerId
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.rollup import INTERVAL_SECONDS
from hetero_hvd.run.reports.facts import facts_of, throughput

AROUND_SECONDS = 60.0
"""Before and after the moment, in which what happened is told."""

SLOW_RATIO = 0.9
"""Of the run's mean: what is below it is called slow."""

MAX_HAPPENED = 20


def said_of(record: Record, at_unix_seconds: float) -> Iterator[str]:
    """Lines for people.

    Args:
        record: Of the run.
        at_unix_seconds: The moment, seconds since 1970.

    Raises:
        UserError: Nothing was recorded then; says from when to when something was.
    """
    facts = facts_of(record)
    if not facts.started_at <= at_unix_seconds <= facts.heard_at + INTERVAL_SECONDS:
        span = f"from {_moment(facts.started_at)} to {_moment(facts.heard_at)}"
        raise UserError(f"--at: {_moment(at_unix_seconds)} is not in the run, which went {span}")
    yield f"at {_moment(at_unix_seconds)}: {_speed(record, at_unix_seconds)}"
    before = [(at, event) for at, event in record.events if at <= at_unix_seconds]
    for event in _under_way(before):
        yield f"  {event_in_words(event)}"
    judged = next((event for _, event in reversed(before) if isinstance(event, Judged)), None)
    for finding in judged.findings if judged else ():
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
        yield f"  {datetime.fromtimestamp(at):%H:%M:%S}  {words}"  # noqa: DTZ006 - the user's own


def _under_way(
    before: Sequence[tuple[float, Event]],
) -> Iterator[StragglerReported | StallReported]:
    """What had begun and was not over: who was slow, and a stall."""
    slow: dict[WorkerId, StragglerReported] = {}
    stall: StallReported | None = None
    for _, event in before:
        if isinstance(event, StragglerReported):
            slow.pop(event.worker, None)
            if event.is_slow:
                slow[event.worker] = event
        elif isinstance(event, StallReported):
            stall = event if event.is_stalled else None
    yield from slow.values()
    if stall is not None:
        yield stall


def _speed(record: Record, at_unix_seconds: float) -> str:
    """In the interval of that moment, beside the mean of the run."""
    starts = sorted({row["at_unix_seconds"] for row in record.rollups})
    begun = [start for start in starts if start <= at_unix_seconds]
    then = throughput([row for row in record.rollups if row["at_unix_seconds"] in begun[-1:]])
    mean = throughput(record.rollups)
    if not (math.isfinite(then) and math.isfinite(mean)):
        return "no step was measured"
    word = "slower than" if then < SLOW_RATIO * mean else "about as fast as"
    return f"{then:.0f} samples/s, {word} the mean of the run ({mean:.0f})"


def _moment(at_unix_seconds: float) -> str:
    if not math.isfinite(at_unix_seconds):
        return "no time"
    return f"{datetime.fromtimestamp(at_unix_seconds):%Y-%m-%d %H:%M:%S}"  # noqa: DTZ006 - as above
