"""Writes the catalogue of a run in a thread of its own, so that a slow disk delays no plan."""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.messages import Logged, NodeSampled, RunStarted, StepsTimed, event_to_json
from hetero_hvd.run.records import logged
from hetero_hvd.run.records.compaction.thinning import SCHEMA as THINNING_SCHEMA
from hetero_hvd.run.records.compaction.thinning import Thinning
from hetero_hvd.run.records.rollup import COLUMNS, Rollups
from hetero_hvd.run.records.run_files import private
from hetero_hvd.run.records.samples import SCHEMA as SAMPLES_SCHEMA
from hetero_hvd.run.records.samples import SampleTable
from hetero_hvd.whole_file import write_whole

logger = logging.getLogger(__name__)

FILE = "run.sqlite"
NAME_FILE = ".run-name"
"""What `--name` calls the run, for the shells, which complete it by tab and read no SQLite."""

MAX_WAITING = 10_000
"""Events that may wait for the disk; more are counted and left out, the loop never waits."""

CLOSE_SECONDS = 5.0
FORK_SECONDS = 1.0
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, at_unix_seconds REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rollups ({", ".join(COLUMNS)}, PRIMARY KEY (at_unix_seconds, worker));
{SAMPLES_SCHEMA};
{THINNING_SCHEMA}
{logged.SCHEMA}
COMMIT;
"""
MAX_WAL_BYTES = 4 * 2**20
"""Of the file run.sqlite-wal once it is empty again; it grows while somebody reads."""


_Item = tuple[float, Observed] | threading.Event | None


class Recorder:
    """An observer of the bus. Its thread starts with the first event.

    One transaction takes all that waits. In SQLite's WAL mode a committed transaction survives the
    death of the process (a power cut may cost the newest ones), and readers are never locked out.
    Raw timings are not written here: they are in timings.jsonl.

    Args:
        folder: Of the run.
        say: Tells people, from its thread, that the disk does not take the events.

    Attributes:
        num_lost: Events left out because the disk did not take them, or did not keep up.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = logger.warning) -> None:
        self._path = folder / FILE
        self._say = say
        self._is_failing = False
        self._queue: queue.Queue[_Item] = queue.Queue(MAX_WAITING)
        self._in_sqlite = threading.Lock()
        self._forking = threading.local()
        self._thread: threading.Thread | None = None
        self.num_lost = 0

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take an event; never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="records", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((at_unix_seconds, event))
        except queue.Full:
            self.num_lost += 1

    def flush(self, timeout_seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all that was taken is committed; False if it is not in time."""
        written = threading.Event()
        self._queue.put(written, timeout=timeout_seconds)
        return written.wait(timeout_seconds)

    def pause_at_forks(self) -> None:
        """Let SQLite do nothing here while this process forks, from now on.

        Else a child that uses SQLite might wait for ever for a mutex that the thread held. Where
        the disk takes longer than `FORK_SECONDS` it is forked all the same.
        """
        os.register_at_fork(
            before=self._hold, after_in_parent=self._release, after_in_child=self._renew
        )

    def _hold(self) -> None:
        self._forking.is_held = self._in_sqlite.acquire(timeout=FORK_SECONDS)

    def _release(self) -> None:
        if self._forking.is_held:
            self._in_sqlite.release()

    def _renew(self) -> None:
        self._in_sqlite = threading.Lock()  # nobody writes here, and a child may fork, too

    def close(self) -> None:
        """Write what waits, and end the thread."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            self.num_lost += self._queue.qsize()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() or self.num_lost:
            self._say(f"{self._path}: {self.num_lost} events are missing")
        self._thread = None

    def _write(self) -> None:
        try:
            with self._in_sqlite:
                connection, thinning, samples = self._connect()
        except (sqlite3.Error, OSError) as error:
            self._complain(error, 0)
            while (unwritten := self._queue.get()) is not None:
                self.num_lost += isinstance(unwritten, tuple)
            return
        self._write_until_closed(connection, thinning, samples)
        with self._in_sqlite, suppress(sqlite3.Error):
            connection.close()

    def _connect(self) -> tuple[sqlite3.Connection, Thinning, SampleTable]:
        descriptor = private(str(self._path), os.O_RDWR | os.O_CREAT)
        os.close(descriptor)  # its mode is that of -wal, too
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
            connection.executescript(SCHEMA)
            _add_new_columns(connection)
            return connection, Thinning(connection), SampleTable(connection)
        except sqlite3.Error:
            connection.close()
            raise

    def _complain(self, error: Exception, num_lost: int) -> None:
        if not self._is_failing:
            self._say(
                f"{self._path} cannot be written: {error}; the training goes on, what is missing "
                "there is counted"
            )
        self._is_failing = True
        self.num_lost += num_lost

    def _write_until_closed(
        self, connection: sqlite3.Connection, thinning: Thinning, samples: SampleTable
    ) -> None:
        rollups = Rollups()
        is_open = True
        while is_open:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
            events = [item for item in items if isinstance(item, tuple)]
            with self._in_sqlite:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    for at_unix_seconds, event in events:
                        try:
                            if isinstance(event, NodeSampled):
                                samples.add(at_unix_seconds, event)
                            else:
                                _insert(connection, rollups, at_unix_seconds, event)
                        except (
                            ValueError,
                            OverflowError,
                        ) as error:  # a text or number that is none
                            self._complain(error, 1)
                    if None in items:
                        samples.close()
                    connection.execute("COMMIT")
                    _thin(thinning, events)
                    _write_name(self._path.with_name(NAME_FILE), events)
                except sqlite3.Error as error:  # a full disk may have room for the next ones
                    self._complain(error, len(events))
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            is_open = None not in items


def _write_name(path: Path, events: Sequence[tuple[float, Observed]]) -> None:
    """Of a run that has begun; where it cannot be written, it can still be typed."""
    for started in (event for _, event in events if isinstance(event, RunStarted)):
        with suppress(OSError, UnicodeError):
            if started.name:
                write_whole(path, f"{started.name}\n".encode())
            else:
                path.unlink(missing_ok=True)


def _add_new_columns(connection: sqlite3.Connection) -> None:
    """A run that is resumed may have been recorded by an earlier version."""
    for table, columns in (("rollups", COLUMNS), ("logged", logged.COLUMNS)):
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for column in (name for name in columns if name not in there):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _thin(thinning: Thinning, events: Sequence[tuple[float, Observed]]) -> None:
    """By the time of the newest event; what cannot be thinned now is so when more has come."""
    for _, event in events:
        if not isinstance(event, StepTable | StepsTimed | NodeSampled | Logged):
            thinning.added(type(event).__name__)
    if events:
        with suppress(sqlite3.Error, msgspec.DecodeError):
            thinning.thin(max(at_unix_seconds for at_unix_seconds, _ in events))


def _insert(
    connection: sqlite3.Connection, rollups: Rollups, at_unix_seconds: float, event: Observed
) -> None:
    if isinstance(event, StepTable):
        marks = ", ".join("?" * len(COLUMNS))
        rows = list(rollups.timed(at_unix_seconds, event))
        names = ", ".join(COLUMNS)
        order = f"INSERT OR REPLACE INTO rollups ({names}) VALUES ({marks})"  # noqa: S608 - no data
        connection.executemany(order, rows)
    elif isinstance(event, Logged):
        marks = ", ".join("?" * len(logged.COLUMNS))
        order = f"INSERT INTO logged ({', '.join(logged.COLUMNS)}) VALUES ({marks})"  # noqa: S608 - no data
        connection.executemany(order, logged.rows_of(at_unix_seconds, event))
    elif not isinstance(event, StepsTimed):
        connection.execute(
            "INSERT INTO events (at_unix_seconds, kind, body) VALUES (?, ?, ?)",
            (at_unix_seconds, type(event).__name__, event_to_json(event)),
        )
