"""Writes the catalogue of a run in a thread of its own, so that a slow disk delays no plan."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from pathlib import Path

from hetero_hvd.driver.records.rollup import COLUMNS, Rollups
from hetero_hvd.messages import Event, StepsTimed, WorkersJoined, event_to_json

logger = logging.getLogger(__name__)

FILE = "run.sqlite"
MAX_WAITING = 10_000
"""Events that may wait for the disk; more are counted and left out, the loop never waits."""

CLOSE_SECONDS = 5.0
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, at_unix_seconds REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rollups ({", ".join(COLUMNS)}, PRIMARY KEY (at_unix_seconds, worker));
COMMIT;
"""

_Item = tuple[float, Event] | threading.Event | None


class Recorder:
    """An observer of the journal. Its thread starts with the first event.

    One transaction takes all that waits. In SQLite's WAL mode a committed transaction survives the
    death of the process (a power cut may cost the newest ones), and readers are never locked out.
    Raw timings are not written here: they are in timings.jsonl.

    Args:
        folder: Of the run.

    Attributes:
        num_lost: Events left out because the disk did not keep up.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._queue: queue.Queue[_Item] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self.num_lost = 0

    def observe(self, at_unix_seconds: float, event: Event) -> None:
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
            logger.warning("records of the run are not complete: %d lost", self.num_lost)
        self._thread = None

    def _write(self) -> None:
        try:
            connection = sqlite3.connect(self._path, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.executescript(SCHEMA)
                self._write_until_closed(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            logger.warning("the run is not recorded any more: %s: %s", self._path, error)

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        rollups = Rollups()
        is_open = True
        while is_open:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
            connection.execute("BEGIN IMMEDIATE")
            for item in items:
                if isinstance(item, tuple):
                    _insert(connection, rollups, *item)
            connection.execute("COMMIT")
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            is_open = None not in items


def _insert(
    connection: sqlite3.Connection, rollups: Rollups, at_unix_seconds: float, event: Event
) -> None:
    if isinstance(event, StepsTimed):
        marks = ", ".join("?" * len(COLUMNS))
        rows = list(rollups.timed(at_unix_seconds, event))
        connection.executemany(f"INSERT OR REPLACE INTO rollups VALUES ({marks})", rows)  # noqa: S608 - marks only
        return
    if isinstance(event, WorkersJoined):
        rollups.joined(event)
    connection.execute(
        "INSERT INTO events (at_unix_seconds, kind, body) VALUES (?, ?, ?)",
        (at_unix_seconds, type(event).__name__, event_to_json(event)),
    )
