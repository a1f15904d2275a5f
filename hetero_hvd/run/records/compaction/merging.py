"""Events that come every few seconds, made one for a longer time; what they sum up stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.core.diagnosis.data_sources import added
from hetero_hvd.messages import (
    ClockMeasured,
    CollectivesTimed,
    Decided,
    DeviceUsed,
    Judged,
    OperationTiming,
    PhasesTimed,
    SourcesRead,
)


class Merging(NamedTuple):
    """How events of a kind become one.

    Attributes:
        whose: What only events with the same answer are merged by.
        merge: One of several, the oldest first.
    """

    whose: Callable[[Any], Hashable]
    merge: Callable[[Sequence[Any]], Any]


def _newest(events: Sequence[Any]) -> Any:  # noqa: ANN401 - of any kind
    return events[-1]


def _use(events: Sequence[DeviceUsed]) -> DeviceUsed:
    told = [event.utilization_ratio for event in events if math.isfinite(event.utilization_ratio)]
    mean = math.fsum(told) / len(told) if told else math.nan
    return msgspec.structs.replace(events[-1], utilization_ratio=mean)


def _phases(events: Sequence[PhasesTimed]) -> PhasesTimed:
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    for event in events:
        for name, value in event.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + event.counts.get(name, 0)
    return msgspec.structs.replace(events[-1], seconds=seconds, counts=counts)


def _sources(events: Sequence[SourcesRead]) -> SourcesRead:
    return msgspec.structs.replace(events[-1], sources=added(events))


def _collectives(events: Sequence[CollectivesTimed]) -> CollectivesTimed:
    sums: dict[tuple[str, str, int], OperationTiming] = {}
    for event in events:
        for found in event.operations:
            key = found.op, found.backend, found.size_bucket_bytes
            before = sums.get(key)
            sums[key] = found if before is None else _both(before, found)
    return msgspec.structs.replace(events[-1], operations=tuple(sums.values()))


def _both(before: OperationTiming, found: OperationTiming) -> OperationTiming:
    return msgspec.structs.replace(
        found,
        count=before.count + found.count,
        num_bytes=before.num_bytes + found.num_bytes,
        total_seconds=before.total_seconds + found.total_seconds,
        min_seconds=min(before.min_seconds, found.min_seconds),
        max_seconds=max(before.max_seconds, found.max_seconds),
    )


MERGED: dict[str, Merging] = {
    kind.__name__: Merging(whose, merge)
    for kind, whose, merge in (
        (PhasesTimed, lambda event: event.worker, _phases),
        (SourcesRead, lambda event: event.worker, _sources),
        (CollectivesTimed, lambda event: (event.rendezvous_id, event.num_workers), _collectives),
        (DeviceUsed, lambda event: event.worker, _use),
        (ClockMeasured, lambda event: event.worker, _newest),
        (Judged, lambda _: None, _newest),
        (Decided, lambda event: event.action, _newest),
    )
}
"""Kinds of events that a running job tells of again and again."""
