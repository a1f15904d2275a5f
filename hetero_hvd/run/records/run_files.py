"""How the files of a run are opened; its folder may be one that others can write to, too.

A process has the folder for itself by a lock of a file in it. Of the folder itself the lock would
be this machine's alone: NFS and Lustre know locks of files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from hetero_hvd.whole_file import write_whole

FOLDER_MODE, FILE_MODE = 0o700, 0o600
LOCK = ".lock"
"""Stays there: who removed it would let somebody else lock another one."""
CHANGE_SECONDS, BETWEEN_TRIES_SECONDS = 2.0, 0.01
"""To change a file takes some ms; who is stopped meanwhile must not hold up the others."""
LISTED = "`hetero-hvd runs` lists those in runs/"
"""What to do where no run is."""


def private(path: str, flags: int) -> int:
    """An `opener` for `open` to write: for its owner alone, for it may hold command lines.

    Raises:
        OSError: It cannot be opened, or is a link, which may have been planted there.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


def regular(path: str, flags: int) -> int:
    """An `opener` for `open` to read: what is no file might never end, or never begin.

    Raises:
        OSError: It cannot be opened, or is no file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is no regular file", path)


def change_file(
    path: Path, change: Callable[[bytes], bytes], *, wait_seconds: float = CHANGE_SECONDS
) -> None:
    """Read a file, change it and replace it as a whole, while no other process does.

    Args:
        path: The file; its folder exists. Beside it stays one whose lock is held meanwhile.
        change: From what is in it to what shall be. Empty: there is no such file yet.
        wait_seconds: So long others who are changing it are waited for; 0: not at all.

    Raises:
        BlockingIOError: It is left as it was: somebody else is changing it for longer.
        OSError: It is left as it was: it cannot be read, or written.
    """
    lock = private(str(path.with_name(f".{path.name}{LOCK}")), os.O_RDWR | os.O_CREAT)
    try:
        _wait_for(lock, path, wait_seconds)
        try:
            with open(path, "rb", opener=regular) as file:
                before = file.read()
        except FileNotFoundError:
            before = b""
        write_whole(path, change(before))
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BlockingIOError(
                    errno.EAGAIN, "another process is changing it", str(path)
                ) from None
            time.sleep(BETWEEN_TRIES_SECONDS)
        except OSError:  # a file system without locks
            return
        else:
            return


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, too: else a power cut may take a new file away.

    Raises:
        OSError: The disk does not take them.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> int | None:
    """Have a folder until this process ends, in whatever way.

    Returns:
        A descriptor, which gives it back when it is closed; None: another process has the folder.

    Raises:
        OSError: There is no such folder, or nothing can be written in it.
    """
    descriptor = private(str(folder / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks
        pass
    return descriptor


def is_locked(folder: Path) -> bool:
    """Whether a process has a folder, as far as its file system tells."""
    try:
        descriptor = regular(str(folder / LOCK), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
