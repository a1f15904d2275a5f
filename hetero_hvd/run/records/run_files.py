"""How the files of a run are opened; its folder may be one that others can write to, too."""

from __future__ import annotations

import errno
import os
import stat

FOLDER_MODE, FILE_MODE = 0o700, 0o600


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
