"""The control groups of this process. Standard library only: a supervisor costs little."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_OF_MACHINE = Path("/proc/vmstat")


def control_groups(controller: str) -> list[Path]:
    """Folders of the control groups that bound this process: its own and all above it."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:  # not Linux, or hidden: then nothing is known to bound us
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            top = _CGROUPS / controller
        elif not controllers:
            top = _CGROUPS
        else:
            continue
        own = top / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return folders


def num_oom_kills() -> int:
    """Processes that the kernel has killed for want of memory in this process's control group.

    Of the whole machine where no control group counts them: then nothing smaller bounds us.
    """
    files = [
        folder / name
        for folder in control_groups("memory")[:1]  # its own; kills elsewhere are no evidence
        for name in ("memory.events", "memory.oom_control")
    ]
    for file in (*files, _OF_MACHINE):
        with suppress(OSError, ValueError, IndexError):
            words = file.read_text().split()
            return int(words[words.index("oom_kill") + 1])
    return 0
