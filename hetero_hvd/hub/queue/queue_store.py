"""All that the queue must not forget: jobs, what was submitted, what users have had, decisions.

What is decided is written here first and carried out afterwards. A crash between the two loses
nothing: the next hub finds what there should be, and makes it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from hetero_hvd.core.queue.jobs import QueuedJob
from hetero_hvd.core.queue.queue_events import QueueDecision
from hetero_hvd.core.queue.queue_state import QueueFacts
from hetero_hvd.discovery.submission.queue_link import SubmittedJob
from hetero_hvd.hub.storage.database import HubDatabase

FILE = "queue.sqlite"
MAX_DECISIONS = 10_000
MIGRATIONS = (
    """
CREATE TABLE facts (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE jobs (number INTEGER PRIMARY KEY, uid INTEGER NOT NULL, attempt INTEGER NOT NULL,
  state BLOB NOT NULL, submission BLOB NOT NULL);
CREATE TABLE decisions (number INTEGER PRIMARY KEY, at REAL NOT NULL, job INTEGER NOT NULL,
  kind TEXT NOT NULL, devices TEXT NOT NULL, reason TEXT NOT NULL);
""",
)
_STATE = "state"
Kept = TypeVar("Kept")


class KeptJob(NamedTuple):
    """A job as it is kept.

    Attributes:
        number: By which people call it.
        uid: Of who has submitted it, and as whom it runs.
        attempt: Of its starts, the newest that was decided on, from 1; 0: none was yet.
        job: What the policy knows of it.
        submission: What is to run.
    """

    number: int
    uid: int
    attempt: int
    job: QueuedJob
    submission: SubmittedJob


class QueueStore:
    """The file. Any call raises OSError where the disk does not take it; then nothing has changed.

    Args:
        folder: Of the hub's store.

    Raises:
        JobError: It cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._database = HubDatabase(folder / FILE, MIGRATIONS)
        self._written: dict[int, tuple[int, bytes]] = {}

    def facts(self) -> QueueFacts | None:
        """What was kept beside the jobs; None: nothing was."""
        with self._database.connected() as connection:
            row = connection.execute("SELECT value FROM facts WHERE key = ?", (_STATE,)).fetchone()
        return None if row is None else self._read(row[0], QueueFacts)

    def jobs(self) -> list[KeptJob]:
        """All, in the order in which they were submitted."""
        with self._database.connected() as connection:
            rows = connection.execute("SELECT * FROM jobs ORDER BY number").fetchall()
        self._written = {number: (attempt, state) for number, _, attempt, state, _ in rows}
        return [
            KeptJob(
                number,
                uid,
                attempt,
                self._read(state, QueuedJob),
                self._read(submission, SubmittedJob),
            )
            for number, uid, attempt, state, submission in rows
        ]

    def _read(self, content: bytes, kind: type[Kept]) -> Kept:
        try:
            return msgspec.msgpack.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self._database.damaged(error) from error

    def write(
        self,
        facts: QueueFacts,
        jobs: Iterable[KeptJob],
        decisions: Iterable[tuple[float, QueueDecision]],
        forgotten: Iterable[int] = (),
    ) -> None:
        """Keep all that has changed, in one piece.

        Args:
            facts: Beside the jobs.
            jobs: All of them.
            decisions: New ones, each with its time.
            forgotten: Numbers of jobs of which nothing is kept any more.
        """
        fresh, added = self._changed(jobs)
        gone = [(number,) for number in forgotten]
        rows = [
            (at, int(each.job), each.kind, " ".join(each.devices), each.reason)
            for at, each in decisions
        ]
        if not (fresh or gone or rows):
            return
        with self._database.connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)",
                (_STATE, msgspec.msgpack.encode(facts)),
            )
            connection.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", added)
            connection.executemany(
                "UPDATE jobs SET attempt = ?, state = ? WHERE number = ?",
                ((*state, number) for number, state in fresh.items()),
            )
            connection.executemany("DELETE FROM jobs WHERE number = ?", gone)
            connection.executemany(
                "INSERT INTO decisions (at, job, kind, devices, reason) VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            connection.execute(
                "DELETE FROM decisions WHERE number <= (SELECT MAX(number) FROM decisions) - ?",
                (MAX_DECISIONS,),
            )
        self._written |= fresh
        for (number,) in gone:
            self._written.pop(number, None)

    def _changed(
        self, jobs: Iterable[KeptJob]
    ) -> tuple[dict[int, tuple[int, bytes]], list[tuple[int, int, int, bytes, bytes]]]:
        """What is unlike what was written, by number, and the rows of jobs that are new."""
        fresh: dict[int, tuple[int, bytes]] = {}
        added: list[tuple[int, int, int, bytes, bytes]] = []
        for kept in jobs:
            state = msgspec.msgpack.encode(kept.job)
            known = self._written.get(kept.number)
            if known is None:
                submission = msgspec.msgpack.encode(kept.submission)
                added.append((kept.number, kept.uid, kept.attempt, state, submission))
            if known != (kept.attempt, state):
                fresh[kept.number] = kept.attempt, state
        return fresh, added

    def decisions(self, number: int) -> list[Mapping[str, object]]:
        """What was decided of a job, oldest first."""
        asked = "SELECT at, kind, devices, reason FROM decisions WHERE job = ? ORDER BY number"
        with self._database.connected() as connection:
            rows = connection.execute(asked, (number,)).fetchall()
        return [
            {"at_unix_seconds": at, "kind": kind, "devices": devices.split(), "reason": reason}
            for at, kind, devices, reason in rows
        ]
