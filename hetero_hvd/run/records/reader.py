"""Reads the catalogue of a run: of one that ended, was killed, or is still running."""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.core.cost import meters
from hetero_hvd.errors import JobError, job_error
from hetero_hvd.messages import CheckpointWritten, Event, Logged, RunStarted, event_from_json
from hetero_hvd.run.records import logged, samples
from hetero_hvd.run.records.rollup import COLUMNS
from hetero_hvd.run.records.run_files import LISTED
from hetero_hvd.run.records.writer import FILE

MAX_ROW_SECONDS = 10.0
"""For the next row of a file that SQLite reads; a plain table gives thousands in that time."""

_NEWEST_START = """SELECT at_unix_seconds, body FROM events
  WHERE kind = 'RunStarted' ORDER BY id DESC LIMIT 1"""

_STARTS_AND_CHECKPOINTS = """SELECT at_unix_seconds, body FROM events
  WHERE kind IN ('RunStarted', 'CheckpointWritten') ORDER BY id"""

_CANNOT_WRITE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
)
STEPS_PER_LOOK = 100_000
MAX_VALUE_BYTES = 256 * 2**20


class Bookmark(NamedTuple):
    """How far a record was read.

    Attributes:
        event: Number of the last event.
        logged: Number of the last logged value.
        rollup: Time of the last interval.
        sample: Time of the last interval of a node's samples.
    """

    event: int = 0
    logged: int = 0
    rollup: float = -math.inf
    sample: float = -math.inf


START = Bookmark()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was written of a run.

    Attributes:
        events: (seconds since 1970, event) in order, without the timings and what was logged.
        rollups: Column to value, one per worker and interval; phases are sums of seconds.
        samples: Column to value, one per node or GPU and interval, as far as they were asked for,
            see `samples.COLUMNS`; empty in a run of an earlier version.
        logged: (seconds since 1970, what was logged) in order.
        mark: Up to here.
        is_held: Whether somebody goes on with it, as far as this machine knows and was asked.
    """

    events: tuple[tuple[float, Event], ...]
    rollups: tuple[dict[str, Any], ...]
    samples: tuple[dict[str, Any], ...] = ()
    logged: tuple[tuple[float, Logged], ...] = ()
    mark: Bookmark = START
    is_held: bool = False


def read_record(
    folder: Path, since: Bookmark = START, *, sampled: Sequence[str] = meters.COLUMNS
) -> Record:
    """All that is committed now.

    The file may come from anywhere: it is read only as far as it has the form that `writer` gives
    it, so no text in it is run as a query.

    Args:
        folder: Of the run.
        since: What was read already is left out; an interval that was read may have grown.
        sampled: Columns of the samples that are asked for: a week's are large, and most readers
            want to know no more of them than the energy.

    Raises:
        JobError: There is no catalogue, or it is not one.
    """
    path = folder / FILE
    if not path.is_file():
        raise JobError(f"{folder}: no run is recorded there ({FILE} is missing); {LISTED}")
    try:
        with closing(_opened(path)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                return Record(events=(), rollups=())  # killed before its first transaction
            for table in ("events", "rollups"):
                _check_plain(connection, table)
            asked = "SELECT id, at_unix_seconds, body FROM events WHERE id > ? ORDER BY id"
            found = list(_rows(connection, asked, since.event))
            rollups = tuple(_rollups(connection, since.rollup))
            values = list(_logged(connection, since.logged))
            of_nodes = tuple(_samples(connection, since.sample, sampled))
            return Record(
                events=tuple(map(_event, found)),
                rollups=rollups,
                samples=of_nodes,
                logged=tuple(logged.events_of(values)),
                mark=Bookmark(
                    event=found[-1]["id"] if found else since.event,
                    logged=values[-1]["id"] if values else since.logged,
                    rollup=rollups[-1]["at_unix_seconds"] if rollups else since.rollup,
                    sample=of_nodes[-1]["at_unix_seconds"] if of_nodes else since.sample,
                ),
            )
    except OSError as error:
        raise job_error(f"{path} cannot be read: {error.strerror or error}", error) from error
    except (sqlite3.Error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobError(f"{path} cannot be read: {error}") from error


def run_id_of(folder: Path) -> str:
    """Id of the newest run that is recorded in a folder; empty where there is none."""
    newest = newest_start(folder)
    return "" if newest is None else newest[1].run_id


def newest_start(folder: Path) -> tuple[float, RunStarted] | None:
    """The newest run that is recorded in a folder, and when it began, seconds since 1970."""
    try:
        told = _told(folder / FILE, _NEWEST_START)
    except JobError:
        return None
    return next(((at, event) for at, event in told if isinstance(event, RunStarted)), None)


def starts_and_checkpoints(folder: Path) -> list[RunStarted | CheckpointWritten]:
    """What is recorded of a run's starts and checkpoints, in order; where nothing is, nothing.

    Raises:
        JobError: There is a record, and it cannot be read.
    """
    told = _told(folder / FILE, _STARTS_AND_CHECKPOINTS)
    return [event for _, event in told if isinstance(event, RunStarted | CheckpointWritten)]


def _told(path: Path, query: str) -> list[tuple[float, Event]]:
    """Some of the events of a record."""
    if not path.is_file():
        return []
    try:
        with closing(_opened(path)) as connection:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            _check_plain(connection, "events")
            return [_event(row) for row in _rows(connection, query)]
    except (OSError, sqlite3.Error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobError(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    """A connection; also where nothing can be written: an archive, or a disk that is full.

    SQLite shares memory with a writer by a file beside the record, which it makes to read as well.
    Who writes has made it: where that is not possible there is no writer, and no need of it.

    Raises:
        sqlite3.Error: It cannot be opened, or is no database.
        OSError: What is not in the file itself yet has no place where it could be put in.
    """
    try:
        return _connected(sqlite3.connect(path))
    except sqlite3.Error as error:
        if (error.sqlite_errorcode or 0) & 0xFF not in _CANNOT_WRITE:
            raise
    unmerged = path.with_name(f"{path.name}-wal")
    if not unmerged.is_file() or not unmerged.stat().st_size:
        return _connected(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True))
    with _for_a_copy() as folder:  # whose files the connection has open
        for one in (path, unmerged):
            shutil.copyfile(one, Path(folder, one.name))
        return _connected(sqlite3.connect(Path(folder, path.name)))


def _connected(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, with which something was read."""
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _for_a_copy() -> Iterator[str]:
    """A folder for the time being.

    Raises:
        OSError: There is no room in it, or none can be made.
    """
    place = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(
            error.errno,
            f"what its writer left beside it must be put into it, in a copy, and {place} cannot be "
            f"written: {why}; make room there, or let TMPDIR name another place",
        ) from error


def _logged(connection: sqlite3.Connection, since: int) -> Iterator[dict[str, Any]]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'logged'").fetchone():
        return  # a run of an earlier version
    _check_plain(connection, "logged")
    yield from _rows(connection, "SELECT * FROM logged WHERE id > ? ORDER BY id", since)


def _check_plain(connection: sqlite3.Connection, name: str) -> None:
    """That it is a table whose columns are stored: a view could compute for ever."""
    query = "SELECT type, sql FROM sqlite_master WHERE lower(name) = ?"
    found = connection.execute(query, (name,)).fetchall()
    is_table = len(found) == 1 and found[0][0] == "table" and found[0][1].startswith("CREATE TABLE")
    computed = "SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden != 0"
    if not is_table or connection.execute(computed, (name,)).fetchone():
        raise ValueError(f"{name!r} is no plain table")


def _rows(connection: sqlite3.Connection, query: str, *values: float) -> Iterator[dict[str, Any]]:
    """The rows of a query, each within its time."""
    deadline = 0.0

    def is_late() -> bool:
        return time.monotonic() > deadline

    connection.set_progress_handler(is_late, STEPS_PER_LOOK)
    deadline = time.monotonic() + MAX_ROW_SECONDS
    found = connection.execute(query, values)
    names = [description[0] for description in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))
        deadline = time.monotonic() + MAX_ROW_SECONDS


def _event(row: dict[str, Any]) -> tuple[float, Event]:
    at_unix_seconds, body = row["at_unix_seconds"], row["body"]
    if not isinstance(at_unix_seconds, float) or not isinstance(body, bytes | str):
        raise ValueError("a row of 'events' is no event")  # noqa: TRY004 - of a file, not of code
    return at_unix_seconds, event_from_json(body)


def _rollups(connection: sqlite3.Connection, since: float) -> Iterator[dict[str, Any]]:
    told = ("last_step", "num_steps", "samples")
    rollups = Figures("rollups", COLUMNS, key=("worker",), texts=("worker",), told=told)
    return _figures(connection, rollups, since)


def _samples(
    connection: sqlite3.Connection, since: float, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'samples'").fetchone():
        return  # it is of an earlier version
    _check_plain(connection, "samples")
    key = ("node", "device", "uuid")
    figures = Figures("samples", columns, key=key, texts=samples.TEXTS, told=("seconds",))
    yield from _figures(connection, figures, since)


class Figures(NamedTuple):
    """A table of what was measured.

    Attributes:
        table: Its name.
        columns: Those that are read; a run of an earlier version has fewer.
        key: Columns of its key, beside the time.
        texts: Columns with a text; all others have a number.
        told: Columns that are never None, beside the time and the key.
    """

    table: str
    columns: Sequence[str]
    key: Sequence[str]
    texts: Collection[str]
    told: Collection[str]


def _figures(
    connection: sqlite3.Connection, figures: Figures, since: float
) -> Iterator[dict[str, Any]]:
    """The rows of a table by time and key.

    A week has a hundred thousand of them, with fifty columns: what is done for each value is left
    to functions that are not Python's own.
    """
    there = {row["name"] for row in _rows(connection, f"PRAGMA table_info({figures.table})")}
    names, texts = figures.columns, figures.texts
    asked = ", ".join(name if name in there else f"NULL AS {name}" for name in names)
    always = {"at_unix_seconds", *figures.key, *figures.told}
    kinds = [
        ((str,) if name in texts else (float, int)) + (() if name in always else (NoneType,))
        for name in names
    ]
    order = ", ".join(["at_unix_seconds", *figures.key])
    query = f"SELECT {asked} FROM {figures.table} WHERE at_unix_seconds >= ? ORDER BY {order}"  # noqa: S608 - no data
    for row in _rows(connection, query, since):
        if not all(map(isinstance, row.values(), kinds)):
            wrong = zip(row.items(), kinds, strict=True)
            name = next(name for (name, value), kind in wrong if not isinstance(value, kind))
            raise ValueError(f"{name!r} of a row of {figures.table!r} is no such value")
        yield row
