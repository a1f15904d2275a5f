"""Workers of this machine in control groups of their own: with limits of memory, or of speed."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.errors import JobError
from tests.kit.cpu_quota import set_quota

GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu")
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class WorkerGroups:
    """One group for each rank, of version 1.

    Attributes:
        name: Of the folder that holds them.
        num_workers: So many.
    """

    name: str
    num_workers: int

    def folder(self, controller: str, rank: int) -> Path:
        """Of a rank."""
        return GROUPS / controller / self.name / f"rank-{rank}"

    def folders(self) -> list[Path]:
        """All, and those that hold them after these."""
        ranks = range(self.num_workers)
        own = [self.folder(each, rank) for each in CONTROLLERS for rank in ranks]
        return own + [GROUPS / each / self.name for each in CONTROLLERS]

    def limit_memory(self, limits: Sequence[int]) -> None:
        """Let each rank's processes have so many bytes, caches included; -1: no limit."""
        for rank, limit in enumerate(limits):
            self._write("memory", rank, "memory.limit_in_bytes", str(limit))

    def limit_speed(self, percents: Sequence[int]) -> None:
        """Give each rank's processes so much of one core."""
        for rank, percent in enumerate(percents):
            set_quota(self.folder("cpu", rank), percent=percent)

    def start_peaks(self) -> None:
        """From now on only new peaks count, and what earlier processes have read is forgotten."""
        for rank in range(self.num_workers):
            self._write("memory", rank, "memory.force_empty", "0")
            self._write("memory", rank, "memory.max_usage_in_bytes", "0")

    def peak_bytes(self, rank: int) -> int:
        """The most memory of a rank since `start_peaks`, caches included."""
        return int((self.folder("memory", rank) / "memory.max_usage_in_bytes").read_text())

    def num_killed(self) -> int:
        """Processes that the kernel has killed in these groups for want of memory."""
        texts = (
            (self.folder("memory", rank) / "memory.oom_control").read_text()
            for rank in range(self.num_workers)
        )
        return sum(int(found[1]) for text in texts if (found := re.search(r"oom_kill (\d+)", text)))

    def interpreter(self, place: Path) -> str:
        """A Python that enters its rank's groups before it starts, whoever has given it the rank.

        Args:
            place: Of the file.
        """
        enter = "".join(
            f"echo $$ >{GROUPS / each / self.name}/rank-${{HOROVOD_RANK:-$RANK}}/cgroup.procs\n"
            for each in CONTROLLERS
        )
        place.write_text(f'#!/bin/sh\nset -e\n{enter}exec {sys.executable} "$@"\n')
        place.chmod(0o755)
        return str(place)

    def _write(self, controller: str, rank: int, file: str, content: str) -> None:
        (self.folder(controller, rank) / file).write_text(content)


@contextmanager
def worker_groups(num_workers: int) -> Iterator[WorkerGroups]:
    """Groups without limits, which are gone afterwards.

    Raises:
        JobError: There are none here.
    """
    groups = WorkerGroups(f"hv-bench-{os.getpid()}", num_workers)
    try:
        try:
            for folder in reversed(groups.folders()):
                folder.mkdir(exist_ok=True)
            groups.start_peaks()
        except OSError as error:
            raise JobError(f"no control groups of version 1 for this user: {error}") from error
        yield groups
    finally:
        _remove(groups.folders())


def _remove(folders: Sequence[Path]) -> None:
    """The kernel lets go of a group a moment after its last process has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for folder in folders:
        while folder.exists():
            with suppress(OSError):
                folder.rmdir()
                break
            if time.monotonic() > deadline:
                raise JobError(f"{folder} cannot be removed: a process of this run is left in it")
            time.sleep(0.02)
