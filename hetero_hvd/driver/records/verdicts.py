"""A recorded run in figures and verdicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_hvd.core.verdicts import Finding, WorkerMeans, judge
from hetero_hvd.driver.records.reader import Record
from hetero_hvd.messages import RunEnded, RunStarted, StragglerReported, WorkersJoined


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as `report` and `runs` show it.

    Attributes:
        run_id: Its name; empty if its start was not recorded.
        state: The reason of its end, or `no end recorded`: it runs, or was killed.
        num_memberships: So many times the workers came together.
        samples_per_second: Mean over the run; NaN: not measured.
        findings: The verdicts.
    """

    run_id: str
    state: str
    num_memberships: int
    samples_per_second: float
    findings: tuple[Finding, ...]


def facts_of(record: Record) -> RunFacts:
    """Judge a run by the newer half of its intervals: the search for shares is left out."""
    events = [event for _, event in record.events]
    times = sorted({row["at_unix_seconds"] for row in record.rollups})
    recent = [row for row in record.rollups if row["at_unix_seconds"] >= times[len(times) // 2]]
    return RunFacts(
        run_id=next((e.run_id for e in events if isinstance(e, RunStarted)), ""),
        state=next((e.reason for e in events if isinstance(e, RunEnded)), "no end recorded"),
        num_memberships=sum(isinstance(event, WorkersJoined) for event in events),
        samples_per_second=throughput(record.rollups),
        findings=(*judge(list(_means(recent))), *_stragglers(events)),
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


def _means(rollups: Sequence[dict[str, Any]]) -> Iterator[WorkerMeans]:
    for name in sorted({row["worker"] for row in rollups}):
        rows = [row for row in rollups if row["worker"] == name]
        steps = sum(row["num_steps"] for row in rows)

        def mean(column: str, rows: list[dict[str, Any]] = rows, steps: float = steps) -> float:
            values = [row[column] for row in rows]
            return math.nan if None in values else float(sum(values)) / steps

        yield WorkerMeans(
            name=name,
            share=mean("samples"),
            data_wait_seconds=mean("data_wait_seconds"),
            transfer_seconds=mean("transfer_seconds"),
            compute_seconds=sum(
                map(mean, ("forward_seconds", "backward_seconds", "optimizer_seconds"))
            ),
            comm_wait_seconds=mean("comm_wait_seconds"),
            step_seconds=mean("step_seconds"),
        )


def _stragglers(events: Sequence[object]) -> Iterator[Finding]:
    """Of each worker its last state, if it is slow."""
    last = {event.worker: event for event in events if isinstance(event, StragglerReported)}
    for worker, event in last.items():
        if event.is_slow:
            words = f"{worker} is slower than it should be since step {event.step}: {event.cause}"
            yield Finding(
                kind="straggler",
                is_complete=math.isfinite(event.speed_ratio),
                words=f"{words}, at {event.speed_ratio:.2f} of its own speed",
                evidence={"speed_ratio": event.speed_ratio, "since_step": event.step},
                next_step=f"look at {worker.node}: its load, clock, disk and network",
            )
