"""Where the time of a recorded run went: per worker and phase, per name of the script's own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_hvd.core.diagnosis.data_sources import added
from hetero_hvd.core.view.live_words import trace_in_words
from hetero_hvd.messages import (
    STEP_PARTS,
    CollectivesTimed,
    PhasesTimed,
    SourceRead,
    SourcesRead,
    TraceWritten,
)
from hetero_hvd.run.records.reader import Record

_BESIDE = "overlapped_comm"
HEADINGS = {
    part.name: part.heading for part in sorted(STEP_PARTS, key=lambda part: part.owner == "others")
} | {_BESIDE: "hidden"}
"""Column of the rollups without `_seconds` to its heading: waiting for others comes last."""


@dataclass(frozen=True, kw_only=True)
class WorkerPhases:
    """One worker's means, seconds per step; NaN: not measured.

    Attributes:
        worker: `node:slot`.
        step_seconds: Of a whole step.
        phases: Name of `HEADINGS` to its mean.
        lateness_seconds: So much later than the first one it was ready to reduce.
        named: Name of the script's own to (seconds of one block, number of blocks), whole run.
        sources: URL to what it had to do with this source of data, whole run.
    """

    worker: str
    step_seconds: float
    phases: dict[str, float]
    lateness_seconds: float
    named: dict[str, tuple[float, int]]
    sources: dict[str, SourceRead] = field(default_factory=dict)


def phases_of(record: Record) -> tuple[WorkerPhases, ...]:
    """Means over the newer half of a run's steps, as its verdicts take them."""
    recent = _newer_half(record.rollups)
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in recent:
        rows[row["worker"]].append(row)
    waits = {worker: _mean(found, "comm_wait_seconds") for worker, found in rows.items()}
    longest = max((wait for wait in waits.values() if math.isfinite(wait)), default=math.nan)
    named, sources = _named(record), _sources(record)
    return tuple(
        WorkerPhases(
            worker=worker,
            step_seconds=_mean(rows[worker], "step_seconds"),
            phases={name: _mean(rows[worker], f"{name}_seconds") for name in HEADINGS},
            lateness_seconds=longest - waits[worker],
            named=named.get(worker, {}),
            sources=sources.get(worker, {}),
        )
        for worker in sorted(rows)
    )


def _newer_half(rollups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The intervals with half of the steps; old ones are longer."""
    steps: dict[float, float] = defaultdict(float)
    for row in rollups:
        steps[row["at_unix_seconds"]] = max(steps[row["at_unix_seconds"]], row["num_steps"])
    left = sum(steps.values()) / 2
    since = math.inf
    for at_unix_seconds in sorted(steps, reverse=True):
        if left <= 0:
            break
        since = at_unix_seconds
        left -= steps[at_unix_seconds]
    return [row for row in rollups if row["at_unix_seconds"] >= since]


def in_words(workers: Sequence[WorkerPhases], record: Record) -> Iterator[str]:
    """Lines for people, milliseconds per step; a dash where nothing was measured."""
    if not workers:
        return
    width = max(len(worker.worker) for worker in workers)
    heads = ["step", *HEADINGS.values(), "late"]
    yield "milliseconds per step (hidden: reduction beside other work; late: behind the first)"
    yield f"  {'':{width}}" + "".join(f"{head:>8}" for head in heads)
    for worker in workers:
        values = [worker.step_seconds, *worker.phases.values(), worker.lateness_seconds]
        yield f"  {worker.worker:{width}}" + "".join(f"{_milliseconds(v):>8}" for v in values)
    for worker in workers:
        for name, (seconds, count) in sorted(worker.named.items()):
            yield f"  {worker.worker:{width}}  phase {name}: {_milliseconds(seconds)} ms x {count}"
        for name, read in sorted(worker.sources.items()):
            yield (
                f"  {worker.worker:{width}}  data {name}: waited {read.wait_seconds:.2f} s; read "
                f"{read.num_bytes / 1e6:.1f} MB in {read.read_seconds:.2f} s, decoded in "
                f"{read.decode_seconds:.2f} s"
            )
    yield from _collectives(record)
    for _, event in record.events:
        if isinstance(event, TraceWritten):
            yield trace_in_words(event)


def _collectives(record: Record) -> Iterator[str]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for _, event in record.events:
        if isinstance(event, CollectivesTimed):
            for operation in event.operations:
                total = sums[operation.op, operation.backend]
                total[0] += operation.count
                total[1] += operation.num_bytes
                total[2] += operation.total_seconds
    for (op, backend), (count, num_bytes, seconds) in sorted(sums.items()):
        yield (
            f"{op} ({backend}): {count:.0f} operations, {num_bytes / 1e6:.1f} MB, "
            f"{_milliseconds(seconds / count)} ms each, as rank 0 saw them"
        )


def _named(record: Record) -> dict[str, dict[str, tuple[float, int]]]:
    sums: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
    for _, event in record.events:
        if isinstance(event, PhasesTimed):
            of_worker = sums[str(event.worker)]
            for name, seconds in event.seconds.items():
                total, count = of_worker.get(name, (0.0, 0))
                of_worker[name] = total + seconds, count + event.counts[name]
    return {
        worker: {name: (total / count, count) for name, (total, count) in found.items()}
        for worker, found in sums.items()
    }


def _sources(record: Record) -> dict[str, dict[str, SourceRead]]:
    events: dict[str, list[SourcesRead]] = defaultdict(list)
    for _, event in record.events:
        if isinstance(event, SourcesRead):
            events[str(event.worker)].append(event)
    return {worker: added(found) for worker, found in events.items()}


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float:
    values = [row[column] for row in rows]
    steps = sum(row["num_steps"] for row in rows)
    return math.nan if None in values or not steps else float(sum(values)) / float(steps)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if math.isfinite(seconds) else "-"
