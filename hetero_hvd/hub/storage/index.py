"""The hub's catalogue in SQLite: which samples stand where, sessions, and what happened.

Samples themselves are in files beside it. What the newest journal holds is not in here yet.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.core.recording.retention import SegmentPart, StoredSegment
from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sequences import MAX_NUMBER
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import ClockAnchor
from hetero_hvd.errors import UserError
from hetero_hvd.hub.storage.database import HubDatabase

FILE = "hub.sqlite"
UNHEALTHY, HEALTHY = "unhealthy", "healthy"
"""Kinds of marks: a node is not heard any more, or again."""

MIGRATIONS = (
    """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE streams (stream TEXT PRIMARY KEY, node TEXT NOT NULL, next_sequence INTEGER NOT NULL,
  newest INTEGER NOT NULL, num_samples INTEGER NOT NULL, num_missing INTEGER NOT NULL);
CREATE TABLE gaps (stream TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  PRIMARY KEY (stream, first));
CREATE TABLE pieces (segment INTEGER NOT NULL, place INTEGER NOT NULL, length INTEGER NOT NULL,
  stream TEXT NOT NULL, node TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  begin INTEGER NOT NULL, end INTEGER NOT NULL, num_samples INTEGER NOT NULL,
  PRIMARY KEY (segment, place));
CREATE INDEX pieces_by_node ON pieces (node, begin);
CREATE TABLE sessions (name TEXT PRIMARY KEY, begin INTEGER NOT NULL, end INTEGER,
  nodes TEXT NOT NULL, every_seconds REAL NOT NULL);
CREATE TABLE marks (at INTEGER NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL,
  words TEXT NOT NULL);
""",
    """
ALTER TABLE sessions ADD COLUMN keep_seconds REAL;
ALTER TABLE sessions ADD COLUMN keep_bytes INTEGER;
""",
    """
CREATE TABLE runs (id TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE run_marks (run TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL,
  kind TEXT NOT NULL, words TEXT NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID;
""",
    """
CREATE INDEX marks_by_time ON marks (at);
""",
)
"""Each brings the catalogue from one version to the next; none is ever changed.

The fourth one came with journals that earlier versions do not read.
"""

SESSION_COLUMNS = (
    "name", "begin", "end", "nodes", "every_seconds", "keep_seconds", "keep_bytes",
)  # fmt: skip


class StreamState(NamedTuple):
    """How far a stream is stored.

    Attributes:
        node: Whose.
        next_sequence: Number of the first sample that is not stored.
        newest: Time of the last one, microseconds.
        num_samples: That are stored.
        num_missing: That will never come.
    """

    node: str
    next_sequence: int
    newest: int
    num_samples: int
    num_missing: int


class StoredPiece(NamedTuple):
    """Where some samples of a stream are.

    Attributes:
        segment: Number of the file.
        place: Where it begins there.
        length: Its bytes.
        stream: Of which.
        node: Whose.
        first: Number of the first sample.
        last: Number of the last one.
        begin: Time of the first one, microseconds.
        end: Time of the last one, microseconds.
        num_samples: How many.
    """

    segment: int
    place: int
    length: int
    stream: str
    node: str
    first: int
    last: int
    begin: int
    end: int
    num_samples: int


class StoredStream(NamedTuple):
    """Where the samples of a stream are.

    Attributes:
        node: Whose.
        stream: Of which life of its agent.
        pieces: What is in segments, in its order.
        waiting: What is in journals, and follows.
    """

    node: str
    stream: str
    pieces: list[StoredPiece]
    waiting: list[Recorded]

    @property
    def begin(self) -> int:
        """Time of its first sample, microseconds."""
        return self.pieces[0].begin if self.pieces else self.waiting[0].at_microseconds


class FleetMark(NamedTuple):
    """Something that happened to a node.

    Attributes:
        at: When, microseconds by the hub's clock.
        node: Its name; empty: the hub itself.
        kind: `unhealthy`, `healthy` or `retention`.
        words: For people.
    """

    at: int
    node: str
    kind: str
    words: str

    def is_of(self, session: RecordingSession) -> bool:
        """Whether it is about a session, or one of its nodes."""
        if self.kind == "retention":
            return self.words.startswith(f"session {session.name} ")
        return not session.nodes or self.node in session.nodes


class HubIndex:
    """The catalogue. Each call has a connection of its own, so that any thread may call it.

    Any of them raises OSError where the disk does not take or give it, and JobError where the
    catalogue is damaged; then nothing has changed.

    Args:
        folder: Of the hub's store.

    Raises:
        JobError: It is of a later version, or is none.
    """

    def __init__(self, folder: Path) -> None:
        database = HubDatabase(folder / FILE, MIGRATIONS)
        self._connected = database.connected
        self.damaged = database.damaged
        self.identity = self._own_identity()

    def _own_identity(self) -> str:
        found = self.value("identity")
        if found is None:
            found = secrets.token_hex(8)
            self.set_value("identity", found)
        return found

    def value(self, key: str) -> str | None:
        """What was set by this name."""
        with self._connected() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_value(self, key: str, value: str) -> None:
        """Set it."""
        with self._connected() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @property
    def anchor(self) -> ClockAnchor | None:
        """Of the hub's clock, as it was last set."""
        found = self.value("anchor")
        return None if found is None else ClockAnchor(*json.loads(found))

    def set_anchor(self, anchor: ClockAnchor) -> None:
        """Keep it for the next hub."""
        self.set_value("anchor", json.dumps(list(anchor)))

    @property
    def last_sealed(self) -> int:
        """Number of the newest journal whose samples are in segments."""
        return int(self.value("sealed") or 0)

    def streams(self) -> dict[str, StreamState]:
        """All that are known, but for what journals hold."""
        with self._connected() as connection:
            rows = connection.execute("SELECT * FROM streams").fetchall()
        return {row[0]: StreamState(*row[1:]) for row in rows}

    def seal(
        self,
        number: int,
        pieces: Iterable[StoredPiece],
        streams: dict[str, StreamState],
        gaps: Iterable[tuple[str, int, int]],
    ) -> None:
        """Note that the samples of a journal are in a segment of the same number."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            marks = ", ".join("?" * len(StoredPiece._fields))
            order = f"INSERT OR REPLACE INTO pieces VALUES ({marks})"  # noqa: S608 - no data
            connection.executemany(order, pieces)
            connection.executemany(
                "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?, ?)",
                ((name, *state) for name, state in streams.items()),
            )
            connection.executemany("INSERT OR REPLACE INTO gaps VALUES (?, ?, ?)", gaps)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('sealed', ?)", (str(number),))

    def pieces(self, session: RecordingSession) -> list[StoredPiece]:
        """Where the samples of a session are, by node and time; some of others are among them."""
        end = session.until_microseconds
        is_of_ours = "AND node IN (SELECT value FROM json_each(:nodes))" if session.nodes else ""
        asked = (
            f"SELECT * FROM pieces WHERE end >= :begin AND begin < :end {is_of_ours} "  # noqa: S608 - no data
            "ORDER BY node, begin, first"
        )
        values = {
            "begin": session.from_microseconds,
            "end": 2**63 - 1 if end is None else end,
            "nodes": json.dumps(session.nodes),
        }
        with self._connected() as connection:
            return [StoredPiece(*row) for row in connection.execute(asked, values)]

    def segments(self, nodes: Iterable[str] = ()) -> list[StoredSegment]:
        """All, the oldest first.

        Args:
            nodes: Those that have parts of their own; all others have one together, without a name:
                a week of a thousand nodes has two million pieces.
        """
        asked = (
            "SELECT segment, CASE WHEN node IN (SELECT value FROM json_each(?)) THEN node ELSE '' "
            "END AS whose, MIN(begin), MAX(end), SUM(length) FROM pieces "
            "GROUP BY segment, whose ORDER BY segment"
        )
        with self._connected() as connection:
            rows = connection.execute(asked, (json.dumps(list(nodes)),)).fetchall()
        found = [
            StoredSegment(number, tuple(SegmentPart(*row[1:]) for row in parts))
            for number, parts in groupby(rows, key=itemgetter(0))
        ]
        return sorted(found, key=lambda segment: segment.end)

    def segment_numbers(self) -> set[int]:
        """Of all segments."""
        with self._connected() as connection:
            rows = connection.execute("SELECT DISTINCT segment FROM pieces").fetchall()
        return {number for (number,) in rows}

    def forget_segment(self, number: int) -> None:
        """Its samples are deleted."""
        with self._connected() as connection:
            connection.execute("DELETE FROM pieces WHERE segment = ?", (number,))

    def first_numbers(self) -> dict[str, int]:
        """Each stream of which there are samples in segments to the number of the first of them."""
        asked = "SELECT stream, MIN(first) FROM pieces GROUP BY stream"
        with self._connected() as connection:
            return dict(connection.execute(asked).fetchall())

    def forget_streams(self, streams: Iterable[str], first_numbers: dict[str, int]) -> None:
        """Delete what is about samples that are gone.

        Args:
            streams: Those of which nothing is to be known any more.
            first_numbers: As of the method; what was missing before them goes.
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM streams WHERE stream = ?", ((s,) for s in streams))
            found = connection.execute("SELECT DISTINCT stream FROM gaps").fetchall()
            connection.executemany(
                "DELETE FROM gaps WHERE stream = ? AND last < ?",
                ((stream, first_numbers.get(stream, MAX_NUMBER + 1)) for (stream,) in found),
            )

    def gaps(self) -> list[tuple[str, int, int]]:
        """Stream, first and last number of what will never come."""
        with self._connected() as connection:
            return connection.execute("SELECT * FROM gaps ORDER BY stream, first").fetchall()

    def sessions(self) -> list[RecordingSession]:
        """All, by their begin."""
        asked = f"SELECT {', '.join(SESSION_COLUMNS)} FROM sessions ORDER BY begin, name"  # noqa: S608 - no data
        with self._connected() as connection:
            rows = connection.execute(asked).fetchall()
        try:
            return [_session(**dict(zip(SESSION_COLUMNS, row, strict=True))) for row in rows]
        except (TypeError, ValueError, UserError, msgspec.ValidationError) as error:
            raise self.damaged(error) from error

    def put_session(self, session: RecordingSession) -> None:
        """Keep it, in the place of one of the same name."""
        row = {
            "name": session.name,
            "begin": session.from_microseconds,
            "end": session.until_microseconds,
            "nodes": json.dumps(session.nodes),
            "every_seconds": session.every_seconds,
            "keep_seconds": session.keep_seconds,
            "keep_bytes": session.keep_bytes,
        }
        names = ", ".join(SESSION_COLUMNS)
        values = ", ".join(f":{name}" for name in SESSION_COLUMNS)
        order = f"INSERT OR REPLACE INTO sessions ({names}) VALUES ({values})"  # noqa: S608 - no data
        with self._connected() as connection:
            connection.execute(order, row)

    def forget(self, sessions: Iterable[str], before: int) -> None:
        """Delete what is about samples that are gone.

        Args:
            sessions: Names of them.
            before: Marks of an earlier time go, microseconds; of each node the last one stays,
                as it says whether that is heard.
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "DELETE FROM sessions WHERE name = ?", ((name,) for name in sessions)
            )
            connection.execute(
                "DELETE FROM marks WHERE at < ? AND rowid NOT IN (SELECT rowid FROM (SELECT rowid, "
                "ROW_NUMBER() OVER (PARTITION BY node ORDER BY at DESC, rowid DESC) AS place "
                "FROM marks) WHERE place = 1)",
                (before,),
            )

    def mark(self, *marks: FleetMark) -> None:
        """Keep what happened."""
        with self._connected() as connection:
            connection.executemany("INSERT INTO marks VALUES (?, ?, ?, ?)", marks)

    def marks(self, session: RecordingSession) -> list[FleetMark]:
        """What happened to a session and its nodes; first those that were silent as it began."""
        end = session.until_microseconds
        limit = 2**63 - 1 if end is None else end
        asked = "SELECT * FROM marks WHERE at < ? ORDER BY at"
        with self._connected() as connection:
            rows = [FleetMark(*row) for row in connection.execute(asked, (limit,))]
        found = [mark for mark in rows if mark.is_of(session)]
        newest = {mark.node: mark for mark in found if mark.at < session.from_microseconds}
        silent = [mark for mark in newest.values() if mark.kind == UNHEALTHY]
        return silent + [mark for mark in found if mark.at >= session.from_microseconds]

    def runs(self) -> list[str]:
        """What is known of each run, JSON."""
        with self._connected() as connection:
            return [row[0] for row in connection.execute("SELECT facts FROM runs")]

    def put_run(
        self,
        run_id: str,
        facts: str,
        marks: Iterable[tuple[int, int, str, str]],
        *,
        oldest_mark: int,
        forgotten: str | None,
    ) -> None:
        """Keep what is known of a run.

        Args:
            run_id: Of the run.
            facts: JSON.
            marks: Number, time in microseconds, kind and words of each that is new.
            oldest_mark: Number of the first one that is kept.
            forgotten: Id of another run of which nothing is kept any more; None: all stay.
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run_id, facts))
            connection.executemany(
                "INSERT OR IGNORE INTO run_marks VALUES (?, ?, ?, ?, ?)",
                ((run_id, *mark) for mark in marks),
            )
            connection.execute(
                "DELETE FROM run_marks WHERE run = ? AND number < ?", (run_id, oldest_mark)
            )
            if forgotten is not None:
                connection.execute("DELETE FROM runs WHERE id = ?", (forgotten,))
                connection.execute("DELETE FROM run_marks WHERE run = ?", (forgotten,))

    def run_marks(self, run_id: str) -> list[tuple[int, str, str]]:
        """Time in microseconds, kind and words of a run's marks, in order."""
        asked = "SELECT at, kind, words FROM run_marks WHERE run = ? ORDER BY number"
        with self._connected() as connection:
            return connection.execute(asked, (run_id,)).fetchall()


def _session(begin: int, end: int | None, nodes: str, **more: Any) -> RecordingSession:  # noqa: ANN401 - of SQLite
    found = {"from_microseconds": begin, "until_microseconds": end, "nodes": json.loads(nodes)}
    return msgspec.convert(found | more, RecordingSession)
