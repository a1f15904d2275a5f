"""A run whose record is in several folders, read as one.

Without a driver rank 0 records a run, and a second host keeps a copy; when rank 0 is lost another
worker goes on, in its own folder. All these parts have one run_id. Of each membership the part
counts that reaches furthest.
"""

from __future__ import annotations

import glob
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from hetero_hvd.core.cost import meters
from hetero_hvd.errors import JobError
from hetero_hvd.messages import Event, RunEnded, RunStarted, WorkersJoined
from hetero_hvd.run.records.reader import Record, read_record, run_id_of
from hetero_hvd.run.records.rollup import INTERVAL_SECONDS
from hetero_hvd.run.records.run_files import is_locked
from hetero_hvd.run.records.timings import Timing, read_timings
from hetero_hvd.run.records.timings import size_bytes as size_of_part
from hetero_hvd.run.records.writer import FILE

Timed = tuple[float, Event]
_Row = TypeVar("_Row")


@dataclass(kw_only=True)
class _Segment:
    """What one part has of one membership.

    Attributes:
        begin_seconds: From then on a row of the part belongs to it, seconds since 1970.
        end_seconds: From then on none does.
        events: With their times.
        applied_steps: Before it.
    """

    begin_seconds: float
    end_seconds: float = math.inf
    events: list[Timed] = field(default_factory=list)
    applied_steps: int = 0

    @property
    def reach_seconds(self) -> float:
        """When the last thing happened; an end is noted by everybody for himself."""
        happened = (at for at, event in self.events if not isinstance(event, RunEnded))
        return max(happened, default=-math.inf)

    def rows(self, rows: Iterable[_Row], times: Iterable[float]) -> list[_Row]:
        """Those of its time."""
        pairs = zip(rows, times, strict=True)
        return [row for row, at in pairs if self.begin_seconds <= at < self.end_seconds]

    def first_rollups(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Those of the interval in which it begins, as far as they are of its own steps."""
        for row in rows:
            begin, at = self.begin_seconds, row["at_unix_seconds"]
            if begin - INTERVAL_SECONDS < at < begin and row["last_step"] >= self.applied_steps:
                yield row | {"at_unix_seconds": begin}


def parts_of(folder: Path) -> list[Path]:
    """The folders beside this one in which the same run is recorded, and this one.

    Args:
        folder: Of a run; what is not recorded there has one part.
    """
    run_id = run_id_of(folder)
    name = run_id.rpartition("-")[0]
    if not name:
        return [folder]
    own = folder if folder.name else folder.absolute()
    beside = sorted(path.parent for path in own.parent.glob(f"{glob.escape(name)}*/{FILE}"))
    found = [path for path in beside if path == own or run_id_of(path) == run_id]
    return found if own in found else [own]


def read_run(folder: Path, *, sampled: Sequence[str] = meters.COLUMNS) -> Record:
    """All that is committed now of a run, in whichever of its folders.

    Args:
        folder: One of them.
        sampled: See `read_record`.

    Raises:
        JobError: There is no catalogue in this one, or it is not one.
    """
    records, parts = [], parts_of(folder)
    for part in parts:
        try:
            records.append(read_record(part, sampled=sampled))
        except JobError:
            if part.absolute().name == folder.absolute().name:
                raise
    return replace(joined(records), is_held=any(map(is_locked, parts)))


def joined(records: Sequence[Record]) -> Record:
    """Several parts of a run as one record.

    Args:
        records: Of the parts; of two that reach equally far the first counts.
    """
    if len(records) == 1:
        return records[0]
    segments = [_segments(record.events) for record in records]
    events: list[Timed] = []
    rollups: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    logged: list[Any] = []
    before: int | None = None
    for number in sorted({number for found in segments for number in found}):
        best = _best(segments, number)
        segment, record = segments[best][number], records[best]
        events = [told for told in events if not isinstance(told[1], RunEnded)]  # it went on
        events += segment.events
        if best != before:
            rollups += segment.first_rollups(record.rollups)
            before = best
        rollups += segment.rows(record.rollups, _times(record.rollups))
        samples += segment.rows(record.samples, _times(record.samples))
        logged += segment.rows(record.logged, map(itemgetter(0), record.logged))
    return Record(
        events=tuple(events), rollups=tuple(rollups), samples=tuple(samples), logged=tuple(logged)
    )


def furthest(records: Sequence[Record]) -> tuple[int, int]:
    """Id of the newest membership, 0 before the first, and the part that reaches furthest in it.

    Args:
        records: Of the parts.
    """
    segments = [_segments(record.events) for record in records]
    number = max(max(found) for found in segments)
    return number, _best(segments, number)


def run_timings(folder: Path) -> Iterator[tuple[float, Timing]]:
    """As `read_timings`, of a run in whichever of its folders.

    Raises:
        JobError: There are no timings in this one, or a complete line is none.
    """
    parts = parts_of(folder)
    if len(parts) == 1:
        yield from read_timings(folder)
        return
    memberships: dict[int, list[list[tuple[float, Timing]]]] = {}
    for part in parts:
        found: dict[int, list[tuple[float, Timing]]] = {}
        with suppress(JobError):  # of another part there may be none
            for at_unix_seconds, event in read_timings(part):
                found.setdefault(event.rendezvous_id, []).append((at_unix_seconds, event))
        for number, timings in found.items():
            memberships.setdefault(number, []).append(timings)
    for number in sorted(memberships):
        yield from max(memberships[number], key=_last_step)


def size_bytes(folder: Path) -> int:
    """Of all that is kept of a run's timings, in its largest part."""
    return max(map(size_of_part, parts_of(folder)))


def history(folder: Path) -> Iterator[Timed]:
    """All events of a run with its raw timings, by time; as far as both were kept.

    Raises:
        JobError: There are no timings, or a file is damaged.
    """
    events: Iterable[Timed] = ()
    values: Iterable[Timed] = ()
    if (folder / FILE).is_file():
        record = read_run(folder)
        # A membership is in both; the one with the timings comes with what follows from it.
        events = (e for e in record.events if not isinstance(e[1], WorkersJoined))
        values = record.logged
    yield from heapq.merge(events, run_timings(folder), values, key=itemgetter(0))


def _segments(events: Sequence[Timed]) -> dict[int, _Segment]:
    """By the id of the membership; a start belongs to the one that follows it."""
    found: dict[int, _Segment] = {}
    newest = _Segment(begin_seconds=-math.inf)
    waiting: list[Timed] = []  # until it is known to which they belong
    for told in events:
        at_unix_seconds, event = told
        if isinstance(event, WorkersJoined):
            begin_seconds = waiting[0][0] if waiting else at_unix_seconds
            newest.end_seconds = begin_seconds
            is_first = not found
            newest = found.setdefault(event.rendezvous_id, _Segment(begin_seconds=begin_seconds))
            newest.begin_seconds = -math.inf if is_first else newest.begin_seconds
            newest.end_seconds = math.inf
            newest.applied_steps = event.applied_steps
            newest.events += waiting
            waiting = []
        if isinstance(event, RunStarted) or not found or waiting:
            waiting.append(told)
        else:
            newest.events.append(told)
    newest.events += waiting
    return found or {0: newest}


def _best(segments: Sequence[Mapping[int, _Segment]], number: int) -> int:
    """Index of the part that reaches furthest in a membership; of two the first one."""
    those = [index for index, found in enumerate(segments) if number in found]
    return max(those, key=lambda index: segments[index][number].reach_seconds)


def _times(rows: Sequence[dict[str, Any]]) -> Iterator[float]:
    return (row["at_unix_seconds"] for row in rows)


def _last_step(timings: Sequence[tuple[float, Timing]]) -> int:
    return max(
        event.applied_steps - 1 if isinstance(event, WorkersJoined) else event.step
        for _, event in timings
    )
