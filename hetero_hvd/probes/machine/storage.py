"""Where a path lies: the mount, its kind, and what is free there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetero_hvd.errors import UserError

_DEVICES = Path("/sys/dev/block")
_IN_MEMORY = ("tmpfs", "ramfs")
_NETWORK = (
    "nfs",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "glusterfs",
    "gpfs",
    "beegfs",
    "9p",
    "virtiofs",
)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What a path lies on.

    Attributes:
        path: Asked for, without symbolic links.
        mount: Where its file system is mounted.
        device: What is mounted there, such as `/dev/nvme0n1p2` or `server:/export`.
        file_system: Such as ext4, nfs4, tmpfs.
        kind: `memory`, `network`, `solid state`, `rotating` or `unknown`.
        total_bytes: Size of the file system.
        free_bytes: What an ordinary user may still write.
        is_read_only: Whether writing is refused.
    """

    path: str
    mount: str
    device: str
    file_system: str
    kind: str
    total_bytes: int
    free_bytes: int
    is_read_only: bool


def probe_storage(path: Path) -> Storage:
    """Look at what a path lies on.

    Raises:
        UserError: There is no such path, or it may not be looked at.
    """
    try:
        real = path.resolve(strict=True)
        usage = psutil.disk_usage(str(real))
        device_number = real.stat().st_dev
        flags = os.statvfs(real).f_flag
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    above = {str(real), *map(str, real.parents)}
    mounts = [part for part in psutil.disk_partitions(all=True) if part.mountpoint in above]
    mounts.sort(key=lambda part: len(part.mountpoint))  # stable: of two in one place the later
    found = mounts[-1] if mounts else None  # in a chroot what is mounted at / is not told
    return Storage(
        path=str(real),
        mount=found.mountpoint if found else "/",
        device=found.device if found else "unknown",
        file_system=found.fstype if found else "unknown",
        kind=_kind(found.fstype if found else "", device_number),
        total_bytes=usage.total,
        free_bytes=usage.free,
        is_read_only=bool(flags & os.ST_RDONLY),
    )


def _kind(file_system: str, device_number: int) -> str:
    if file_system in _IN_MEMORY:
        return "memory"
    if file_system.removeprefix("fuse.").startswith(_NETWORK):
        return "network"
    number = f"{os.major(device_number)}:{os.minor(device_number)}"
    folder = (_DEVICES / number).resolve()
    for place in (folder, folder.parent):  # a disk, or a partition of the disk above it
        try:
            text = (place / "queue" / "rotational").read_text().strip()
        except OSError:
            continue
        return "rotating" if text == "1" else "solid state"
    return "unknown"
