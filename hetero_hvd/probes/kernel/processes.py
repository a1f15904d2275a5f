"""What the kernel knows of a process that says nothing itself: stopped, busy or stuck."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
DEAD = "X"
"""State of a process of which the kernel frees what it had; hardly anybody ever sees it."""


def state_of(pid: int, proc: Path = PROC) -> str:
    """`T` if the process is stopped, `R` if it runs, `S` or `D` if it waits; `?` if it is gone."""
    return stat_fields(pid, proc)[0]


def started_at(pid: int, proc: Path = PROC) -> int:
    """When it was started, in ticks since boot; 0: it is gone.

    With its number this tells it from any other process of the same boot.
    """
    with suppress(ValueError, IndexError):
        return int(stat_fields(pid, proc)[19])
    return 0


def runs_as(pid: int, uid: int, proc: Path = PROC) -> bool:
    """Whether a process is a user's and has no rights but that user's."""
    with suppress(OSError):
        for line in (proc / str(pid) / "status").read_text(errors="replace").splitlines():
            name, _, ids = line.partition(":")
            if name == "Uid":  # real, effective, saved, of the file system (proc(5))
                return set(ids.split()) == {str(uid)}
    return False


def active_seconds(pid: int, proc: Path = PROC) -> float:
    """Processor time that a process has used or has waited for, all its threads together.

    On a machine with too few cores a busy process waits for one: that counts as busy too.
    """
    total = 0.0
    for task in _entries(proc / str(pid) / "task"):
        with suppress(OSError, ValueError, IndexError):
            used, waited = (task / "schedstat").read_text().split()[:2]
            total += (int(used) + int(waited)) / 1e9
            continue
        with suppress(OSError, ValueError, IndexError):  # a kernel without scheduler statistics
            fields = stat_fields(int(task.name), task.parent)
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def session_of(leader: int, proc: Path = PROC) -> list[int]:
    """The processes that a process has started in its session, itself included."""
    pids = [int(entry.name) for entry in _entries(proc) if entry.name.isdecimal()]
    return [pid for pid in pids if stat_fields(pid, proc)[3] == str(leader)]


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """State, parent, group, session, ... (proc(5), stat); if it is gone, four question marks."""
    with suppress(OSError):
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return ["?"] * 4


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []
