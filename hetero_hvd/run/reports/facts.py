"""A recorded run in figures and with its verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hetero_hvd.messages import Finding, Judged, RunEnded, RunStarted, WorkersJoined
from hetero_hvd.run.records.reader import Record

UNJUDGED = Finding(
    kind="compute", is_complete=False, words="the run was not judged before it ended"
)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as `report` and `runs` show it.

    Attributes:
        run_id: See `RunStarted`; empty if its start was not recorded.
        state: The reason of its end, or `no end recorded`: it runs, or was killed.
        num_memberships: So many times the workers came together.
        samples_per_second: Mean over the run; NaN: not measured.
        findings: Its verdict.
    """

    run_id: str
    state: str
    num_memberships: int
    samples_per_second: float
    findings: tuple[Finding, ...]


def facts_of(record: Record) -> RunFacts:
    """A run as far as it was recorded; its verdict is the last one that the driver gave.

    A resume that has trained nothing does not take the verdict away.
    """
    events = [event for _, event in record.events]
    starts = [index for index, event in enumerate(events) if isinstance(event, RunStarted)]
    newest = events[starts[-1] :] if starts else events  # it may have been gone on with there
    judged = [event.findings for event in events if isinstance(event, Judged)]
    told = [found for found in judged if any(finding.is_complete for finding in found)]
    return RunFacts(
        run_id=next((e.run_id for e in newest if isinstance(e, RunStarted)), ""),
        state=next((e.reason for e in newest if isinstance(e, RunEnded)), "no end recorded"),
        num_memberships=sum(isinstance(event, WorkersJoined) for event in events),
        samples_per_second=throughput(record.rollups),
        findings=[(UNJUDGED,), *judged, *told][-1],
    )


def throughput(rollups: Sequence[dict[str, Any]]) -> float:
    """Samples of all workers / time of the steps, which is that of the longest; NaN: unmeasured."""
    samples, seconds = 0.0, 0.0
    intervals: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for row in rollups:
        intervals[row["at_unix_seconds"]].append(row)
    for rows in intervals.values():
        durations = [row["step_seconds"] for row in rows if row["step_seconds"] is not None]
        if durations:
            samples += sum(row["samples"] for row in rows)
            seconds += max(durations)
    return samples / seconds if seconds > 0 else math.nan
