"""The clock of a machine since its boot: nobody sets it, and it runs while the machine sleeps."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_seconds() -> float:
    """Time since this machine was booted, all sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Which boot that was; empty: the kernel does not tell."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
