"""A small file in which the kernel counts something, read again and again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 4096


class KernelFile:
    """Opened once: with cold caches, opening takes several times as long as reading.

    Args:
        path: Of the file; one that cannot be opened has no words.
    """

    def __init__(self, path: Path) -> None:
        self._number: int | None = None
        with suppress(OSError):
            self._number = os.open(path, os.O_RDONLY)

    def words(self) -> list[bytes]:
        """What it says now; nothing if that cannot be read, as when its control group is gone."""
        if self._number is None:
            return []
        try:
            return os.pread(self._number, MAX_BYTES, 0).split()
        except OSError:  # also where the kernel knows pressure, but was started without it
            return []

    def __del__(self) -> None:
        if self._number is not None:
            os.close(self._number)
