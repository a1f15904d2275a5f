"""For how long a thread could have run and had no processor."""

from __future__ import annotations

import math
from pathlib import Path

from hetero_hvd.probes.kernel.kernel_counter_file import KernelFile

OF_THREAD = Path("/proc/thread-self/schedstat")


class ContentionMeter:
    """Reads the run delay that the kernel counts for the thread that makes this meter.

    It is the time on a run queue (Documentation/scheduler/sched-stats.rst): other threads had the
    processors, or a CPU quota held this one back.
    """

    def __init__(self) -> None:
        self._file = KernelFile(OF_THREAD)
        self._before = self._total()

    def take(self) -> float:
        """Seconds since the last call; NaN where the kernel does not tell."""
        before, self._before = self._before, self._total()
        return self._before - before

    def _total(self) -> float:
        words = self._file.words()
        if len(words) < 2 or words[0] == b"0":  # noqa: PLR2004 - a kernel that does not count says 0 0 0
            return math.nan
        return int(words[1]) * 1e-9
