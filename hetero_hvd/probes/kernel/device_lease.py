"""The lease of a device on its node: one worker at a time has it, whoever has started that.

It is the lock of a file in a folder that all users of the machine share. The kernel frees it when
the last process ends that holds its descriptor: the supervisor, its worker, and what that forks. A
dead holder keeps nothing, and a worker that outlives its supervisor keeps its device, so that
nobody else trains on it meanwhile. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero_hvd.core.printable import printable

FOLDER_VARIABLE = "HETERO_HVD_LEASES_FOLDER"
PLACES = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - see `_opened_folder`
NAME = "hetero_hvd-leases"
FOR_ALL, FILE_FOR_ALL = 0o1777, 0o666
MAX_HOLDER_BYTES = 512
NUM_TRIES = 5
_ODD = re.compile(r"[^A-Za-z0-9_.:-]")


class DeviceTakenError(OSError):
    """Another job has a device; says which."""


def take_leases(devices: Iterable[str], holder: str, say: Callable[[str], None]) -> list[int]:
    """Have all of these devices, or none; see `take_lease`.

    Args:
        devices: What they are called.
        holder: For people who want them, too.
        say: Tells people that there are no leases here.

    Raises:
        DeviceTakenError: Somebody has one of them.
    """
    held: list[int] = []
    for device in devices:
        try:
            lease = take_lease(device, holder)
        except OSError as error:
            say(f"note: other jobs may use {device}, too: {error}")
            continue
        if isinstance(lease, str):
            for each in held:
                os.close(each)
            raise DeviceTakenError(f"{device} is in use: {lease} has it")
        held.append(lease)
    return held


def take_lease(device: str, holder: str, places: Iterable[Path] = PLACES) -> int | str:
    """Have a device until all processes have ended that hold the descriptor.

    Args:
        device: What it is called by all who may want it: the UUID of a GPU, say.
        holder: For people who want it, too.
        places: Folders of the system; the first in which ours can be is used.

    Returns:
        A descriptor, not passed on to children unless they are given it; or, in words, who has the
        device.

    Raises:
        OSError: No folder can be had; says why of each.
    """
    folder = _opened_folder(places)
    try:
        name = _ODD.sub("_", device)[:200]
        for _ in range(NUM_TRIES):
            try:
                file = _opened_file(folder, name)
            except PermissionError:
                place = Path(f"/proc/self/fd/{folder}").readlink()
                return f"whoever has made {place}/{name} for himself alone"
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                words = _holder(file)
                os.close(file)
                return words
            with suppress(OSError):  # somebody may have removed it meanwhile
                if os.path.samestat(os.fstat(file), os.stat(name, dir_fd=folder)):
                    _write(file, holder)
                    return file
            os.close(file)
        raise OSError(f"{name}: is removed again and again")
    finally:
        os.close(folder)


def _opened_folder(places: Iterable[Path]) -> int:
    """The folder that all users share: nobody removes in it what is another one's.

    Raises:
        OSError: None of the places can be used.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    problems = []
    for path in [Path(given)] if given else [place / NAME for place in places]:
        try:
            # What only some could make, others would have elsewhere: a folder each, a device twice.
            if given or path.exists() or stat.S_IMODE(path.parent.stat().st_mode) == FOR_ALL:
                with suppress(FileExistsError), _all_bits():
                    path.mkdir(FOR_ALL)
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        found = os.fstat(folder)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != FOR_ALL:
            os.fchmod(folder, FOR_ALL)
        elif stat.S_IMODE(found.st_mode) != FOR_ALL:
            os.close(folder)
            problems.append(f"{path}: is not for all users")
            continue
        return folder
    raise OSError("; ".join(problems))


@contextmanager
def _all_bits() -> Iterator[None]:
    """What is made is for all at once: who is killed half-way leaves nothing that is not."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _opened_file(folder: int, name: str) -> int:
    """A file that all users may lock, never through a link.

    Raises:
        OSError: It cannot be had.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for is_last in (*[False] * NUM_TRIES, True):
        try:
            file = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            # Never with O_CREAT where it is there: Linux refuses that for files of other users.
            with suppress(FileExistsError), _all_bits():
                return os.open(name, flags | os.O_CREAT | os.O_EXCL, FILE_FOR_ALL, dir_fd=folder)
            continue
        except PermissionError:  # by an earlier version, which made it for all in a second step
            if is_last:
                raise
            flags = flags & ~os.O_RDWR | os.O_RDONLY  # enough for the lock
            continue
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(f"{name}: is no file")
        return file
    raise OSError(f"{name}: is removed again and again")


def _write(file: int, holder: str) -> None:
    content = json.dumps({"holder": holder, "pid": os.getpid()}).encode()
    with suppress(OSError):  # only words for people: a full disk frees no device
        os.ftruncate(file, 0)
        os.pwrite(file, content, 0)


def _holder(file: int) -> str:
    """Who holds it, as he says himself; one who has just taken it may not have said it yet."""
    with suppress(ValueError, KeyError, TypeError, OSError):
        return printable(str(json.loads(os.pread(file, MAX_HOLDER_BYTES, 0))["holder"]))
    return "another job"
