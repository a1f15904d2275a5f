"""Who writes a checkpoint: what a writer has left half is told from what one is still at."""

from __future__ import annotations

import os
import re
import secrets
from functools import cache
from hashlib import sha256
from pathlib import Path

OLD_SECONDS = 3600.0
"""What nobody has written to for so long is taken as left, wherever its writer is."""

_WRITER = re.compile(r"([0-9a-f]{12})-([0-9]+)-[0-9a-f]{8}")


def new_writer() -> str:
    """A name that no other writer has, without dots: its place, its process and a random part."""
    return f"{_own_place()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_left(writer: str, age_seconds: float) -> bool:
    """Whether what a writer has not completed will stay so.

    Only where this process could see the writer's is the lack of it a sign of its end.

    Args:
        writer: As of `new_writer`; earlier versions had other names.
        age_seconds: Since the last change of it.
    """
    found = _WRITER.fullmatch(writer)
    if found and found[1] == _own_place() and not _is_alive(int(found[2])):
        return True
    return age_seconds > OLD_SECONDS


@cache
def _own_place() -> str:
    """The processes that see each other: those of one start of a machine, in one container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    own = f"{os.uname().nodename} {boot} {Path('/proc/self/ns/pid').readlink()}"
    return sha256(own.encode()).hexdigest()[:12]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
