"""Files that are written as a whole or not at all: who reads one meanwhile reads what was before.

A file that gets one record after the other is in `kept_file`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o600
"""A file may hold command lines, which may hold what is nobody else's."""

AS_THE_UMASK_HAS_IT = 0o666


def write_whole(path: Path, content: bytes, *, mode: int = OWNER_ONLY) -> None:
    """Write a file in the place of one that may be there; nothing else stays beside it.

    Args:
        path: The file; its folder exists. Of a link the link is replaced, not what it leads to.
        content: All of it.
        mode: Of the file, less the umask.

    Raises:
        OSError: It is left as it was.
    """
    # A name that nobody knows before: in a folder of several somebody could lay a file there, or
    # have it in another container, where process numbers are the same.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(fresh, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
            file.write(content)
        fresh.replace(path)
    except BaseException:  # Ctrl-C, too, leaves nothing behind
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
