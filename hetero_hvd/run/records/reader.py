"""Reads the catalogue of a run: of one that ended, was killed, or is still running."""

from __future__ import annotations

import heapq
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.messages import Event, WorkersJoined, event_from_json
from hetero_hvd.run.records.rollup import COLUMNS
from hetero_hvd.run.records.timings import read_timings
from hetero_hvd.run.records.writer import FILE

MAX_ROW_SECONDS = 10.0
"""For the next row of a file that SQLite reads; a plain table gives thousands in that time."""

STEPS_PER_LOOK = 100_000
MAX_VALUE_BYTES = 256 * 2**20


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

    The file may come from anywhere: it is read only as far as it has the form that `writer` gives
    it, so no text in it is run as a query.

    Raises:
        JobError: There is no catalogue, or it is not one.
    """
    path = folder / FILE
    if not path.is_file():
        raise JobError(f"{folder}: no run is recorded there ({FILE} is missing)")
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                return Record(events=(), rollups=())  # killed before its first transaction
            for table in ("events", "rollups"):
                _check_plain(connection, table)
            rows = _rows(connection, "SELECT at_unix_seconds, body FROM events ORDER BY id")
            events = tuple(_event(row) for row in rows)
            rollups = tuple(_rollups(connection))
    except (sqlite3.Error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobError(f"{path} cannot be read: {error}") from error
    return Record(events=events, rollups=rollups)


def _check_plain(connection: sqlite3.Connection, name: str) -> None:
    """That it is a table whose columns are stored: a view could compute for ever."""
    query = "SELECT type, sql FROM sqlite_master WHERE lower(name) = ?"
    found = connection.execute(query, (name,)).fetchall()
    is_table = len(found) == 1 and found[0][0] == "table" and found[0][1].startswith("CREATE TABLE")
    computed = "SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden != 0"
    if not is_table or connection.execute(computed, (name,)).fetchone():
        raise ValueError(f"{name!r} is no plain table")


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[dict[str, Any]]:
    """The rows of a query, each within its time."""
    deadline = 0.0

    def is_late() -> bool:
        return time.monotonic() > deadline

    connection.set_progress_handler(is_late, STEPS_PER_LOOK)
    deadline = time.monotonic() + MAX_ROW_SECONDS
    found = connection.execute(query)
    names = [description[0] for description in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))
        deadline = time.monotonic() + MAX_ROW_SECONDS


def _event(row: dict[str, Any]) -> tuple[float, Event]:
    at_unix_seconds, body = row["at_unix_seconds"], row["body"]
    if not isinstance(at_unix_seconds, float) or not isinstance(body, bytes | str):
        raise ValueError("a row of 'events' is no event")  # noqa: TRY004 - of a file, not of code
    return at_unix_seconds, event_from_json(body)


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
    for row in _rows(connection, "SELECT * FROM rollups ORDER BY at_unix_seconds, worker"):
        for name in COLUMNS:  # a run of an earlier version has fewer
            value = row.setdefault(name, None)
            if not isinstance(value, str if name == "worker" else float | int | None):
                raise ValueError(f"{name!r} of a row of 'rollups' is no such value")  # noqa: TRY004
        yield {name: row[name] for name in COLUMNS}
