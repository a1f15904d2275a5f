"""Reads the catalogue of a run: of one that ended, was killed, or is still running."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.driver.records.rollup import COLUMNS
from hetero_hvd.driver.records.timings import read_timings
from hetero_hvd.driver.records.writer import FILE
from hetero_hvd.errors import JobError
from hetero_hvd.messages import Event, WorkersJoined, event_from_json


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was written of a run.

    Attributes:
        events: (seconds since 1970, event) in order, without the timings.
        rollups: Column to value, one per worker and interval; phases are sums of seconds.
    """

    events: tuple[tuple[float, Event], ...]
    rollups: tuple[dict[str, Any], ...]


def read_record(folder: Path) -> Record:
    """All that is committed now.

    Raises:
        JobError: There is no catalogue, or it is not one.
    """
    path = folder / FILE
    if not path.is_file():
        raise JobError(f"{folder}: no run is recorded there ({FILE} is missing)")
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA query_only=ON")
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                return Record(events=(), rollups=())  # killed before its first transaction
            found = connection.execute("SELECT at_unix_seconds, body FROM events ORDER BY id")
            events = tuple((at_seconds, event_from_json(body)) for at_seconds, body in found)
            rollups = tuple(_rollups(connection))
    except (sqlite3.Error, msgspec.DecodeError) as error:
        raise JobError(f"{path} cannot be read: {error}") from error
    return Record(events=events, rollups=rollups)


def history(folder: Path) -> Iterator[tuple[float, Event]]:
    """All events of a run with its raw timings, by time; as far as both were kept.

    Raises:
        JobError: There are no timings, or a file is damaged.
    """
    events: Iterable[tuple[float, Event]] = ()
    if (folder / FILE).is_file():
        # A membership is in both; the one with the timings comes with what follows from it.
        events = (e for e in read_record(folder).events if not isinstance(e[1], WorkersJoined))
    yield from heapq.merge(events, read_timings(folder), key=itemgetter(0))


def _rollups(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    found = connection.execute("SELECT * FROM rollups ORDER BY at_unix_seconds, worker")
    names = [description[0] for description in found.description]
    for row in found:  # a run of an earlier version has fewer columns
        yield dict.fromkeys(COLUMNS) | dict(zip(names, row, strict=True))
