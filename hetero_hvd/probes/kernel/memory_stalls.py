"""For how long the lack of memory has kept this process's control group waiting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.probes.kernel.kernel_counter_file import KernelFile

OWN_GROUPS = Path("/proc/self/cgroup")
MOUNTS = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")
"""Of version 2 alone, and beside version 1."""

OF_MACHINE = Path("/proc/pressure/memory")


class MemoryStallMeter:
    """Reads the kernel's pressure stall information (`some`; Documentation/accounting/psi.rst).

    It counts the time in which at least one task waited because pages that are in use had been
    taken away, for their way back, or for the kernel to find free ones.
    """

    def __init__(self) -> None:
        path = next((path for path in _paths() if path.is_file()), OF_MACHINE)
        self._file = KernelFile(path)
        self._before = self._total()

    def take(self) -> float:
        """Seconds since the last call; NaN where the kernel does not tell.

        Of the machine where no control group of version 2 is around this process.
        """
        before, self._before = self._before, self._total()
        return self._before - before

    def _total(self) -> float:
        totals = (word for word in self._file.words() if word.startswith(b"total="))
        return next((int(word[6:]) * 1e-6 for word in totals), math.nan)


def _paths() -> Iterator[Path]:
    """Where it may stand, the smallest group first."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    paths = [line[3:] for line in lines if line.startswith("0::")]
    for path in paths:
        yield from (mount / path.lstrip("/") / "memory.pressure" for mount in MOUNTS)
