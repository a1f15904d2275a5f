"""How much memory this process has used at most, and how much more it could get."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetero_hvd.probes.kernel.control_groups import control_groups

STATUS = Path("/proc/self/status")
SIZES = re.compile(r"^(VmSize|VmHWM|VmRSS):\s+(\d+)", re.MULTILINE)
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5)
KEPT = ("anon", "shmem", "file_mapped"), ("total_rss", "total_shmem", "total_mapped_file")
"""What a control group cannot simply drop, in the words of version 2 and 1; the rest is cache."""

UNLIMITED = 2**62
"""Bytes; what version 1 says where there is no limit is just below 2**63."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """One look at a process's, or a device's, memory.

    Attributes:
        used_bytes: Now.
        peak_bytes: At most since `reset_peak`.
        limit_bytes: What it has now and what it could still get.
    """

    used_bytes: int
    peak_bytes: int
    limit_bytes: int


def host_memory(node_limit_bytes: int | None = None) -> MemoryUse:
    """Of this process in the machine's memory.

    What it could still get is the least of: what the machine has available, what each control group
    above has left beside caches, and what RLIMIT_AS leaves.

    Args:
        node_limit_bytes: The most that the user allows it; None = no such limit.
    """
    sizes = _own_sizes()
    used, peak = sizes["VmRSS"], sizes["VmHWM"]
    rooms = [psutil.virtual_memory().available]
    rooms += [room for room in map(_room, control_groups("memory")) if room is not None]
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        rooms.append(allowed - sizes["VmSize"])
    limit = used + max(0, min(rooms))
    return MemoryUse(
        used_bytes=used,
        peak_bytes=max(used, peak),
        limit_bytes=min(limit, node_limit_bytes or limit),
    )


def host_memory_again(last: MemoryUse, node_limit_bytes: int | None = None) -> MemoryUse:
    """What this process uses by now; its limit, which costs ten times as much, is not looked for.

    Args:
        last: What was found a moment ago.
        node_limit_bytes: As for `host_memory`; it does not give way to what is in use.
    """
    sizes = _own_sizes()
    used, peak = sizes["VmRSS"], sizes["VmHWM"]
    limit = max(used, last.limit_bytes)
    return MemoryUse(
        used_bytes=used,
        peak_bytes=max(used, peak),
        limit_bytes=min(limit, node_limit_bytes or limit),
    )


def _own_sizes() -> dict[str, int]:
    """Bytes of this process's memory, under the kernel's names."""
    found = SIZES.findall(STATUS.read_text())
    return {name: 1024 * int(kilobytes) for name, kilobytes in found}


def reset_host_peak() -> None:
    """Measure this process's peak from now on; where the kernel does not let us, it stays."""
    with suppress(OSError):
        CLEAR_REFS.write_text(RESET_PEAK)


def _room(folder: Path) -> int | None:
    """Bytes that a control group has left; None where it has no limit."""
    for file in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit = int((folder / file).read_text())
            if limit >= UNLIMITED:
                return None
            lines = (folder / "memory.stat").read_text().splitlines()
            stat = dict(line.split(" ", 1) for line in lines)
            kept = max((sum(int(stat.get(name, 0)) for name in names) for names in KEPT), default=0)
            return limit - kept
    return None
