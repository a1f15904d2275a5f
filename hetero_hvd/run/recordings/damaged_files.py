"""Files of samples that are damaged: set aside for people, the newest few, and read no more."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

SUFFIX = ".damaged"
MAX_KEPT = 4
"""In a folder: a disk that fails damages file after file, and has no room for all of them."""

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What says nothing about a file that cannot be read."""


def kept_name(path: Path) -> str:
    """How a file is called after it was set aside."""
    return path.name + SUFFIX


def set_aside(path: Path) -> None:
    """Keep a file under another name; the oldest that were set aside make room.

    Args:
        path: Of the file; what is there need not be one.

    Raises:
        OSError: The disk refuses it; it stays where it is.
    """
    path.replace(path.with_name(kept_name(path)))
    for old in damaged_files(path.parent)[:-MAX_KEPT]:
        with suppress(OSError):
            old.unlink()


def damaged_files(folder: Path) -> list[Path]:
    """Those that were set aside, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))
