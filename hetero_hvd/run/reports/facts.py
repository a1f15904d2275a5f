"""A recorded run in figures and with its verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_hvd.core.view.quality import LOSS
from hetero_hvd.exit_codes import EXITS_BY_PEOPLE
from hetero_hvd.messages import (
    Evaluated,
    Finding,
    Finished,
    Judged,
    RunEnded,
    RunStarted,
    WorkersJoined,
)
from hetero_hvd.run.records.reader import Record

UNJUDGED = Finding(
    kind="compute", is_complete=False, words="the run was not judged before it ended"
)

RUNNING, NO_END = "running", "no end recorded"
OUTCOMES = ("running", "finished", "failed", "stopped", "no-end", "unreadable")
"""How a run stands in a word; `stopped`: by a signal that people send; `no-end`: none was recorded,
it was killed or runs elsewhere; `unreadable`: its record is none."""

NOT_RECORDED = RunStarted(run_id="", command=(), nodes=(), settings={})


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as `report` and `runs` show it.

    Attributes:
        run_id: See `RunStarted`; empty if its start was not recorded.
        name: What its user calls it.
        tags: What its user says of it, by name.
        started_at: When, seconds since 1970; NaN: not recorded.
        steps: Up to the last one that was heard of.
        metrics: The newest result of each metric that was evaluated, by name.
        train_loss: Mean of the newest steps that told it together; NaN: not told.
        heard_at: When it was heard of last, seconds since 1970; NaN: never.
        outcome: One of `OUTCOMES`.
        state: The reason of its end; `running`, as far as this machine knows; or `no end
            recorded`: it was killed, or runs elsewhere.
        num_memberships: So many times the workers came together.
        samples_per_second: Mean over the run; NaN: not measured.
        findings: Its verdict.
    """

    run_id: str
    name: str
    tags: dict[str, str]
    started_at: float
    steps: int
    metrics: dict[str, float]
    train_loss: float
    heard_at: float
    outcome: str
    state: str
    num_memberships: int
    samples_per_second: float
    findings: tuple[Finding, ...]

    @property
    def duration_seconds(self) -> float:
        """From its first start to what was heard of it last.

        NaN: that was not recorded, or its clock was set back by more than that meanwhile.
        """
        found = self.heard_at - self.started_at
        return found if found >= 0 else math.nan


def facts_of(record: Record) -> RunFacts:
    """A run as far as it was recorded; its verdict is the last one that the driver gave.

    A resume that has trained nothing does not take the verdict away.
    """
    events = [event for _, event in record.events]
    starts = [index for index, event in enumerate(events) if isinstance(event, RunStarted)]
    newest = events[starts[-1] :] if starts else events  # it may have been gone on with there
    judged = [event.findings for event in events if isinstance(event, Judged)]
    told = [found for found in judged if any(finding.is_complete for finding in found)]
    started = next((event for event in newest if isinstance(event, RunStarted)), NOT_RECORDED)
    metrics: dict[str, float] = {}
    for event in events:
        if isinstance(event, Evaluated):
            metrics |= event.metrics
    end = next((event for event in newest if isinstance(event, RunEnded)), None)
    without_end = RUNNING if record.is_held else NO_END
    return RunFacts(
        run_id=started.run_id,
        name=started.name,
        tags=started.tags,
        started_at=next((at for at, e in record.events if isinstance(e, RunStarted)), math.nan),
        steps=max(_steps(record), default=0),
        metrics=metrics,
        train_loss=next(
            (e.values[LOSS].mean for _, e in reversed(record.logged) if LOSS in e.values), math.nan
        ),
        heard_at=_heard_at(record),
        outcome=_outcome(end, is_held=record.is_held),
        state=without_end if end is None else end.reason,
        num_memberships=sum(isinstance(event, WorkersJoined) for event in events),
        samples_per_second=throughput(record.rollups),
        findings=[(UNJUDGED,), *judged, *told][-1],
    )


def _outcome(end: RunEnded | None, *, is_held: bool) -> str:
    if end is None:
        return "running" if is_held else "no-end"
    if end.exit_code == 0:
        return "finished"
    return "stopped" if end.exit_code in EXITS_BY_PEOPLE else "failed"


def _heard_at(record: Record) -> float:
    """Of the newest of all that was told; the interval of a rollup goes on after its time."""
    newest = [entries[-1][0] for entries in (record.events, record.logged) if entries]
    newest += [row["at_unix_seconds"] for row in record.rollups[-1:]]
    return max(newest, default=math.nan)


def _steps(record: Record) -> Iterator[int]:
    """Applied steps, as often as they were told; the last ones come after the last timings."""
    yield from (row["last_step"] + 1 for row in record.rollups)
    yield from (event.step for _, event in record.logged)
    for _, event in record.events:
        if isinstance(event, Evaluated):
            yield event.step
        if isinstance(event, Finished):
            yield event.applied_steps


def intervals_of(rollups: Sequence[dict[str, Any]]) -> dict[float, list[dict[str, Any]]]:
    """The rows of each interval, by the time at which it began."""
    intervals: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for row in rollups:
        intervals[row["at_unix_seconds"]].append(row)
    return intervals


def trained(rollups: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Samples of all workers, and the time of the steps, which is that of the longest; seconds."""
    samples, seconds = 0.0, 0.0
    for rows in intervals_of(rollups).values():
        durations = [row["step_seconds"] for row in rows if row["step_seconds"] is not None]
        if durations:
            samples += sum(row["samples"] for row in rows)
            seconds += max(durations)
    return samples, seconds


def throughput(rollups: Sequence[dict[str, Any]]) -> float:
    """Samples per second of the steps' time; NaN: unmeasured."""
    samples, seconds = trained(rollups)
    return samples / seconds if seconds > 0 else math.nan
