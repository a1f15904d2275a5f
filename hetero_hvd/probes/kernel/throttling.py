"""For how long a CPU quota has kept this process from running."""

from __future__ import annotations

import math

from hetero_hvd.probes.kernel.control_groups import control_groups
from hetero_hvd.probes.kernel.kernel_counter_file import KernelFile

FIELDS = {b"throttled_usec": 1e-6, b"throttled_time": 1e-9}
"""Of cpu.stat in control groups of version 2 and 1, and their units in seconds."""


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
