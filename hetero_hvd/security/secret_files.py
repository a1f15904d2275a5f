"""Files that only their owner may read: keys, certificates with their keys, tokens."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from hetero_hvd.errors import UserError


def read_secret(path: Path, max_bytes: int) -> tuple[int, bytes]:
    """The mode of a file, and what is in it.

    Args:
        path: Of the file; nobody waits at a pipe, or reads a device.
        max_bytes: So much of it is read.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return stat.S_IMODE(mode), file.read(max_bytes)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 that does not exist yet: the whole of it, or none.

    Raises:
        UserError: It exists already, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{path}: exists already; a key is never overwritten") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:  # a disk that is full, say: half a key is in the way of the next try
        with suppress(OSError):
            path.unlink()
        raise UserError(f"{path}: cannot be made: {error.strerror}") from error
