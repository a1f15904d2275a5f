"""What processes of others use of this machine's processors: all but jobs and what those start.

A program that computes on a machine that jobs keep busy gets a part of a processor, and waits for
the rest: that counts, too (its main thread's wait, schedstat). Many short waits of one that does
little, which jobs cause, do not.

Whatever our own processes start is ours, too. What a process uses after the last look before its
end is not counted: its parent's sum of that (proc(5), stat) would hold the work of ended jobs.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hetero_hvd.probes.kernel.boot_clock import boot_seconds
from hetero_hvd.probes.kernel.processes import PROC, stat_fields

WINDOW_SECONDS = 1.0
"""Over which a load is a mean: shorter ones are of what does not last."""

YOUNG_SECONDS = 5.0
"""For so long a process may become another program; who it is, is asked again."""

BUSY_PART = 1 / 20
"""Of its wait a program must have computed, for the wait to be a wish to compute."""

KERNEL_THREAD = 0x00200000
"""A flag of the kernel's own threads (PF_KTHREAD of include/linux/sched.h)."""


class _Process(NamedTuple):
    """What the kernel shows: parent, flags, start and processor time, in ticks."""

    parent: int
    flags: int
    started: int
    ticks: int


class _Want(NamedTuple):
    """Processor time of a process, and that of its main thread and what this has waited for."""

    used_seconds: float
    ran_seconds: float
    waited_seconds: float


NONE = _Want(0.0, 0.0, 0.0)


class OthersLoad:
    """Looks again and again.

    Args:
        proc: Where the kernel shows processes.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._ours: dict[tuple[int, int], bool] = {}
        self._wants: dict[tuple[int, int], _Want] | None = None
        self._wanted_seconds = 0.0
        self._looks: deque[tuple[float, float]] = deque()

    def look(self, now_seconds: float) -> float:
        """Processors that others use or want, mean over `WINDOW_SECONDS`; 0 at first.

        Args:
            now_seconds: Monotonic.
        """
        self._count()
        self._looks.append((now_seconds, self._wanted_seconds))
        while len(self._looks) > 1 and self._looks[1][0] <= now_seconds - WINDOW_SECONDS:
            self._looks.popleft()
        began, before = self._looks[0]
        passed = now_seconds - began
        if passed < WINDOW_SECONDS / 2:
            return 0.0
        return (self._wanted_seconds - before) / max(passed, WINDOW_SECONDS)

    def is_ours(self, pid: int) -> bool:
        """Whether a process is a job's, or was started by one; who is not to be seen is, too."""
        while pid > 1:
            found = self._process(pid)
            if found is None or self._is_a_program_of_ours(pid):
                return True
            pid = found.parent
        return False

    def _count(self) -> None:
        """Add what others have used since the look before."""
        found = {}
        for name in os.listdir(self._proc):  # noqa: PTH208 - many paths would cost more than it all
            if name.isdecimal() and (process := self._process(int(name))) is not None:
                found[int(name)] = process
        ours = {(pid, each.started): self._belongs_to_us(pid, found) for pid, each in found.items()}
        oldest = boot_seconds() - YOUNG_SECONDS
        self._ours = {
            key: is_ours
            for key, is_ours in ours.items()
            if key[1] / self._ticks_per_second < oldest
        }
        wants = {
            (pid, each.started): self._want(pid, each)
            for pid, each in found.items()
            if not ours[pid, each.started]
        }
        before = wants if self._wants is None else self._wants
        for key, want in wants.items():
            pairs = zip(want, before.get(key, NONE), strict=True)
            used, ran, waited = (now - then for now, then in pairs)
            self._wanted_seconds += max(0.0, used)
            if ran >= waited * BUSY_PART:
                self._wanted_seconds += max(0.0, waited)
        self._wants = wants

    def _want(self, pid: int, process: _Process) -> _Want:
        ran = waited = 0.0
        with suppress(OSError, ValueError):  # a kernel without scheduler statistics
            words = (self._proc / str(pid) / "schedstat").read_bytes().split()[:2]
            ran, waited = (int(word) / 1e9 for word in words)
        return _Want(process.ticks / self._ticks_per_second, ran, waited)

    def _belongs_to_us(self, pid: int, found: dict[int, _Process]) -> bool:
        path = []
        is_ours = False
        while (process := found.get(pid)) is not None and pid > 1:
            known = self._ours.get((pid, process.started))
            if known is not None:
                is_ours = known
                break
            path.append(pid)
            if process.flags & KERNEL_THREAD or self._is_a_program_of_ours(pid):
                is_ours = True
                break
            pid = process.parent
        return is_ours

    def _process(self, pid: int) -> _Process | None:
        with suppress(ValueError, IndexError):
            words = stat_fields(pid, self._proc)
            ticks = int(words[11]) + int(words[12])
            return _Process(int(words[1]), int(words[6]), int(words[19]), ticks)
        return None

    def _is_a_program_of_ours(self, pid: int) -> bool:
        """Whether it is hetero-hvd, as a command or as a module."""
        with suppress(OSError):
            words = (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")[:12]
            is_module = any(
                mark == b"-m" and (word + b".").startswith(b"hetero_hvd.")
                for mark, word in itertools.pairwise(words)
            )
            return is_module or any(word.endswith(b"/hetero-hvd") for word in words[:2])
        return False
