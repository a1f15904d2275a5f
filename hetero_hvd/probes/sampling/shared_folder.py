"""The folder in which a user's programs on one node share samples. Standard library only.

It is private and in memory. Whoever holds the lock takes the samples, the others read what he has
written. The kernel frees the lock when its holder ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hetero_hvd.probes.kernel.machine_identity import machine_identity

FOLDER_VARIABLE = "HETERO_HVD_SAMPLES_FOLDER"
PLACES = (Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - only a private folder in it is used
MAX_FILE_BYTES = 2**20
_PRIVATE = 0o700

Version = tuple[int, int, int]
"""Of a file that is always replaced as a whole: differs after each replacement."""


class SharedFolder:
    """One folder for each user and machine.

    Args:
        path: Where it is; made if it is not there. Nobody else may have made it.

    Raises:
        OSError: It cannot be made, or is not ours alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _make_private(path)

    @classmethod
    def of_this_node(cls, places: Iterable[Path] = PLACES) -> SharedFolder:
        """The one that all programs of this user on this machine use.

        Containers with a network of their own are machines of their own, see `machine_identity`.

        Raises:
            OSError: None of the places can be used; says why of each.
        """
        if given := os.environ.get(FOLDER_VARIABLE):
            try:
                return cls(Path(given).absolute())
            except OSError as error:
                why = f"{FOLDER_VARIABLE}: {given}: {error.strerror or error}"
                raise OSError(
                    f"{why}; name one that is yours alone, or that can be made"
                ) from error
        problems = []
        for place in places:
            own = place / f"hetero_hvd-{os.getuid()}"
            try:
                _make_private(own)
                return cls(own / machine_identity()[:16])
            except OSError as error:
                problems.append(f"{own}: {error.strerror or error}")
        raise OSError("; ".join(problems))

    def try_to_lock(self) -> int | None:
        """A descriptor that holds the lock while it, or a copy in a child, is open.

        Returns:
            None: somebody else holds it.

        Raises:
            OSError: The folder cannot be used any more.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def is_locked_by(self, descriptor: int) -> bool:
        """Whether it is still the file of the lock; somebody may have removed the folder."""
        try:
            return os.path.samestat(os.fstat(descriptor), (self.path / "lock").stat())
        except OSError:
            return False

    def write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole; for who holds the lock.

        Raises:
            OSError: There is no room, or no folder any more.
        """
        new = self.path / f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(new, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.replace(self.path / name)

    def version(self, name: str) -> Version | None:
        """Of a file; None: it is not there."""
        with suppress(OSError):
            found = (self.path / name).lstat()
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def read(self, name: str) -> bytes:
        """What is in a file; empty: nothing that we would have written."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError), os.fdopen(os.open(self.path / name, flags), "rb") as file:
            found = os.fstat(file.fileno())
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
            if is_ours and found.st_size <= MAX_FILE_BYTES:
                return file.read(MAX_FILE_BYTES)
        return b""


def _make_private(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=_PRIVATE)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError("is not a folder of ours")
    if stat.S_IMODE(found.st_mode) & ~_PRIVATE:
        raise PermissionError("others may enter it")
