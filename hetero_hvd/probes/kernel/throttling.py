"""How much processor time a CPU quota gives this process, and for how long it was kept waiting."""

from __future__ import annotations

import math
import time

from hetero_hvd.probes.kernel.control_groups import control_groups
from hetero_hvd.probes.kernel.kernel_counter_file import KernelFile

FIELDS = {b"throttled_usec": 1e-6, b"throttled_time": 1e-9}
"""Of cpu.stat in control groups of version 2 and 1, and their units in seconds."""


LOOK_SECONDS = 0.05
"""Between two readings of a limit: they cost more than what a short step asks it for."""


class CpuQuota:
    """Reads how many cores the control groups that bound this process allow to it."""

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._cores = math.inf
        folders = control_groups("cpu")
        self._limits = [KernelFile(folder / "cpu.max") for folder in folders]
        self._pairs = [
            (KernelFile(folder / "cpu.cfs_quota_us"), KernelFile(folder / "cpu.cfs_period_us"))
            for folder in folders
        ]

    def cores(self) -> float:
        """The least that any of them allows, > 0; infinity where none has a limit.

        May be asked in each step: the kernel's files are read again after `LOOK_SECONDS`.
        """
        now = time.monotonic()
        if now < self._read_at + LOOK_SECONDS:
            return self._cores
        self._read_at = now
        found = [file.words() for file in self._limits]
        found += [quota.words() + period.words() for quota, period in self._pairs]
        self._cores = min((_cores(words) for words in found), default=math.inf)
        return self._cores


def _cores(words: list[bytes]) -> float:
    """Cores by a quota and its period, both in microseconds; what is no number is no limit."""
    if len(words) != 2 or not all(map(bytes.isdigit, words)):  # noqa: PLR2004 - the two
        return math.inf
    quota, period = map(int, words)
    return quota / period if quota and period else math.inf


class ThrottleMeter:
    """Reads what the kernel counts for the control groups that bound this process."""

    def __init__(self) -> None:
        files = [KernelFile(folder / "cpu.stat") for folder in control_groups("cpu")]
        self._files = [file for file in files if not math.isnan(_throttled_seconds(file))]
        self._before = self._total()

    def take(self) -> float:
        """Seconds since the last call in which a quota held threads of this group back.

        All threads of the group count, so it may be more than has passed. NaN where the kernel does
        not tell.
        """
        before, self._before = self._before, self._total()
        return self._before - before if self._files else math.nan

    def _total(self) -> float:
        return sum(_throttled_seconds(file) for file in self._files)


def _throttled_seconds(file: KernelFile) -> float:
    words = file.words()
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name in FIELDS:
            return int(value) * FIELDS[name]
    return math.nan
