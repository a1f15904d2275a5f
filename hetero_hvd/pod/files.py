"""A pod's keys, its shared memory, and the folders in which it must be able to write."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.errors import UserError, first_line
from hetero_hvd.pod.findings import PodFinding, PodPlaces
from hetero_hvd.probes.machine.hardware import allowed_memory_bytes
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.security.token import read_token

MOUNTS = Path("/proc/self/mountinfo")
MIN_SHM_BYTES = 2**27
"""Loaders with processes pass batches through it; containers without a volume have 64 MiB."""

MIN_FREE_BYTES = 2**28
"""In a folder: a checkpoint is written into a temporary file first."""

COPIED = (
    "the first container copies the Secret's files with mode 0400: is it still in the manifest?"
)


def key_findings(places: PodPlaces) -> Iterator[PodFinding]:
    """Whether cluster key and token are files that this user alone can read."""
    key, token = places.keys
    try:
        read_key(Path(key))
    except UserError as error:
        yield _of_key(key, first_line(error))
    else:
        yield _of_key(key, "")
    try:
        read_token(token, "token")
    except UserError as error:
        yield _of_key(token, first_line(error).removeprefix("token: "))
    else:
        yield _of_key(token, "")


def _of_key(path: str, problem: str) -> PodFinding:
    try:
        about = Path(path).stat()
        found = f"mode {stat.S_IMODE(about.st_mode):04o}, of user {about.st_uid}"
        if about.st_uid != os.geteuid():
            found += f", and this is user {os.geteuid()}"
    except OSError as error:
        found = error.strerror or type(error).__name__
    return PodFinding(
        what=path,
        found=found,
        to_do=f"{problem}; {COPIED}" if problem else "",
        stops_training=bool(problem),
    )


def shared_memory_finding(folder: str) -> PodFinding:
    """Whether the shared memory is memory, and enough of it."""
    what = f"{folder} size"
    try:
        room = os.statvfs(folder)
    except OSError as error:
        to_do = "give the pod a volume there: emptyDir with medium: Memory"
        return PodFinding(what=what, found=f"{error.strerror}", to_do=to_do)
    num_bytes, kind = room.f_blocks * room.f_frsize, file_system_of(folder)
    found = f"{_gibibytes(num_bytes)}, {kind}"
    to_do = ""
    if kind != "tmpfs":
        to_do = "it is no memory: give its emptyDir medium: Memory, as loaders write batches there"
    elif num_bytes < MIN_SHM_BYTES:
        to_do = (
            f"loaders with processes need {_gibibytes(MIN_SHM_BYTES)} or more: raise --shm, "
            "sizeLimit of the volume"
        )
    elif num_bytes >= (limit := allowed_memory_bytes()):
        to_do = (
            f"what is in it counts as the pod's memory, of which there is {_gibibytes(limit)}: "
            "raise --agent-memory, or lower --shm"
        )
    return PodFinding(what=what, found=found, to_do=to_do)


def file_system_of(folder: str) -> str:
    """The kind of the file system that a folder is in, such as tmpfs; empty if nobody says."""
    path = os.path.realpath(folder)
    kinds = {}
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:  # a later one covers an earlier one at the same place
        place = line.split()[4].replace("\\040", " ")
        if os.path.commonpath([place, path]) == place:
            kinds[place] = line.partition(" - ")[2].split()[0]
    return kinds[max(kinds, key=len)] if kinds else ""


def folder_finding(folder: str) -> PodFinding:
    """Whether a file can be written in a folder, and how much room is there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
        room = os.statvfs(folder)
    except OSError as error:
        return PodFinding(
            what=f"{folder} write",
            found=error.strerror or type(error).__name__,
            to_do=_remedy(error),
            stops_training=True,
        )
    free_bytes = room.f_bavail * room.f_frsize
    to_do = "" if free_bytes >= MIN_FREE_BYTES else "make room, or a larger volume"
    found = f"can be written, {_gibibytes(free_bytes)} free"
    return PodFinding(what=f"{folder} write", found=found, to_do=to_do)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room, or a larger volume"
    if error.errno == errno.ENOENT:
        return "there is no such folder: is its volume still in the manifest?"
    if error.errno == errno.EROFS:
        return "it is read-only: mount a volume there that is not"
    return f"user {os.geteuid()} must be able to write there: fsGroup of the pod, or the volume"


def _gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2g} GiB"
