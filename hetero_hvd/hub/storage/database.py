"""A file of SQLite in the hub's store: its schema, and what its errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hetero_hvd.errors import JobError
from hetero_hvd.run.records.run_files import private

BUSY_SECONDS = 30.0
OF_THE_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
}
"""What SQLite says where the system refuses it something, and what the system calls that."""


class HubDatabase:
    """Each use has a connection of its own, so that any thread may call it.

    Args:
        path: Of the file.
        migrations: Each brings the schema from one version to the next; none is ever changed.

    Raises:
        JobError: It is of a later version, or is none.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self._path = path
        os.close(private(str(path), os.O_RDWR | os.O_CREAT))
        with self.connected() as connection:
            # WAL, as earlier ones had it, cannot even be read on a full disk.
            connection.execute("PRAGMA journal_mode=DELETE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise JobError(
                    f"{path}: is of a later hetero_hvd (schema {version}, known is "
                    f"{len(migrations)}): start that version's hub"
                )
            for number, script in enumerate(migrations[version:], version + 1):
                connection.executescript(
                    f"BEGIN IMMEDIATE;{script}PRAGMA user_version={number};COMMIT;"
                )

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, which an error undoes.

        Raises:
            OSError: The disk does not take or give it.
            JobError: The file is damaged.
        """
        try:
            with (
                closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as connection,
                connection,
            ):
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
        except sqlite3.OperationalError as error:
            number = OF_THE_DISK.get(error.sqlite_errorcode & 0xFF)
            if number is None:
                raise self.damaged(error) from error
            raise OSError(number, os.strerror(number), str(self._path)) from error
        except (OverflowError, sqlite3.ProgrammingError):  # of who calls
            raise
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> JobError:
        """What to raise where something in it is none of ours."""
        return JobError(
            f"{self._path}: cannot be used: {error}; put back a copy of it, or give another --store"
        )
