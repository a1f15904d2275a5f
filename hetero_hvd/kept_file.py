"""A file of the run that gets one record after the other, and never stops the training.

What the disk does not take is said once, counted, and left out as a whole: the next record does not
stand behind half a one. A file that is full today may take the next record.

A file that may grow all the time has a limit: when it is reached, the file gets the suffix `.1`, in
the place of the one that had it, and a new one begins.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILE_MODE = 0o600
"""Only the owner may read it: it may hold what a script prints. A planted link is not followed, and
nobody waits at a planted pipe."""


def older(path: Path) -> Path:
    """Where what was written before it is kept, if there is so much."""
    return path.with_name(f"{path.name}.1")


class KeptFile:
    """Appends records; each is one system call, so what was written survives the process.

    Args:
        path: The file; its folder exists.
        say: Tells people of a record that could not be written.
        max_bytes: No record makes the file larger, but one that is larger by itself; None: it is
            not limited here.

    Attributes:
        num_lost: Records that could not be written.
    """

    def __init__(
        self, path: Path, say: Callable[[str], None], *, max_bytes: int | None = None
    ) -> None:
        self.num_lost = 0
        self._path = path
        self._say = say
        self._max_bytes = max_bytes
        self._descriptor: int | None = None

    @property
    def size_bytes(self) -> int:
        """Of the file as it is; 0 if there is none."""
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size

    def touch(self) -> KeptFile:
        """Make the file now, not with the first record."""
        self.append(b"")
        return self

    def append(self, record: bytes) -> bool:
        """Write a record; whether it is written."""
        try:
            self._append(record)
        except OSError as error:
            self.num_lost += 1
            if self.num_lost == 1:
                self._say(
                    f"{self._path} cannot be written: {error.strerror}; the training goes on, "
                    "what is missing there is counted"
                )
            return False
        return True

    def reopen(self) -> None:
        """Go on in a new file: this one was given another name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def close(self) -> None:
        """Close the file; tell how much is missing in it."""
        self.reopen()
        if self.num_lost:
            self._say(f"{self._path}: {self.num_lost} records are missing")

    def _append(self, record: bytes) -> None:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            self.reopen()  # somebody has removed it: what is written there nobody reads
        if self._descriptor is None:
            self._descriptor = os.open(self._path, FLAGS, FILE_MODE)
        size_bytes = os.fstat(self._descriptor).st_size
        if self._max_bytes is not None and 0 < size_bytes > self._max_bytes - len(record):
            with suppress(OSError):  # it becomes longer
                self._path.replace(older(self._path))
                self.reopen()
            self._descriptor = self._descriptor or os.open(self._path, FLAGS, FILE_MODE)
            size_bytes = os.fstat(self._descriptor).st_size
        written = -1
        try:
            written = os.write(self._descriptor, record)
        finally:
            if written < len(record):
                with suppress(OSError):
                    os.ftruncate(self._descriptor, size_bytes)
        if written < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
