"""What this machine does: processors, memory, network, disks, power, from the kernel's files.

The files are read directly: a sample each second must cost next to nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_SYS = Path("/sys")
_SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the disk has."""

_CPU_SENSORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "x86_pkg_temp"}
_MOUNTED_FROM_FILES = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
_IDLE = slice(3, 5)
"""Fields of the first line of /proc/stat: idle, and idle while a disk works."""

_NUM_TIMES = 8
"""Fields of the same that count: those after are parts of the first ones."""


class MachineMeter:
    """Reads counters, and makes rates of them.

    Args:
        proc: Where the kernel shows processes and counters.
        sys: Where it shows devices.
    """

    def __init__(self, proc: Path = _PROC, sys: Path = _SYS) -> None:
        self._proc = proc
        self._sys = sys
        self._sensors = _cpu_sensors(sys)
        self._packages = _packages(sys)
        self._before: dict[str, float] = {}
        self._energy_joules = 0.0

    def take(self, seconds: float) -> tuple[dict[str, float], list[str]]:
        """Fields of a `NodeSampled` that are known, and what could not be asked.

        Args:
            seconds: Since the call before; NaN: this is the first one.
        """
        sources: dict[str, Callable[[float], dict[str, float]]] = {
            "processors": self._processors,
            "load": lambda _: {"load": os.getloadavg()[0]},
            "memory": lambda _: self._memory(),
            "network": self._network,
            "disks": self._disks,
            "package energy": self._power,
            "processor temperature": lambda _: self._temperature(),
        }
        figures: dict[str, float] = {}
        problems = []
        for name, read in sources.items():
            try:
                figures |= read(seconds)
            except (OSError, ValueError, IndexError, KeyError) as error:
                problems.append(f"{name}: {error}")
        return figures, problems

    def _change(self, name: str, now: float, wraps_at: float = 0.0) -> float:
        """Of a counter since the call before; NaN at the first one, and where it begins anew."""
        change = now - self._before.get(name, math.nan)
        self._before[name] = now
        if change < 0 and wraps_at:
            change += wraps_at
        return change if change >= 0 else math.nan

    def _processors(self, _seconds: float) -> dict[str, float]:
        with (self._proc / "stat").open() as file:
            times = [int(word) for word in file.readline().split()[1:]][:_NUM_TIMES]
        total, idle = self._change("all", sum(times)), self._change("idle", sum(times[_IDLE]))
        return {"cpu_use_ratio": 1.0 - idle / total if total > 0 else math.nan}

    def _memory(self) -> dict[str, float]:
        used, total = memory_bytes(self._proc)
        return {"memory_used_bytes": used, "memory_total_bytes": total}

    def _network(self, seconds: float) -> dict[str, float]:
        rows = {}
        for line in (self._proc / "net" / "dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            words = numbers.split()
            rows[name.strip()] = (int(words[0]), int(words[8]))
        rows.pop("lo", None)
        cards = self._sys / "class" / "net"
        real = [name for name in rows if (cards / name / "device").exists()]
        received, sent = (sum(rows[name][way] for name in real or rows) for way in (0, 1))
        return {
            "network_received_bytes_per_second": self._change("received", received) / seconds,
            "network_sent_bytes_per_second": self._change("sent", sent) / seconds,
        }

    def _disks(self, seconds: float) -> dict[str, float]:
        disks = {folder.name for folder in (self._sys / "block").iterdir()}
        read = written = 0
        for line in (self._proc / "diskstats").read_text().splitlines():
            words = line.split()
            if words[2] in disks and not words[2].startswith(_MOUNTED_FROM_FILES):
                read += int(words[5]) * _SECTOR_BYTES
                written += int(words[9]) * _SECTOR_BYTES
        return {
            "disk_read_bytes_per_second": self._change("read", read) / seconds,
            "disk_written_bytes_per_second": self._change("written", written) / seconds,
        }

    def _power(self, seconds: float) -> dict[str, float]:
        """Empty where the kernel does not let us read: it does so for root alone, usually."""
        if not self._packages:
            return {}
        used = math.fsum(
            self._change(folder.name, int((folder / "energy_uj").read_text()), wraps_at) * 1e-6
            for folder, wraps_at in self._packages
        )
        if math.isfinite(used):
            self._energy_joules += used
        return {"package_power_watts": used / seconds, "package_energy_joules": self._energy_joules}

    def _temperature(self) -> dict[str, float]:
        found = []
        for sensor in self._sensors:
            with suppress(OSError, ValueError):  # one of many may be asleep
                found.append(int(sensor.read_text()) * 1e-3)
        return {"cpu_temperature_celsius": max(found)} if found else {}


def memory_bytes(proc: Path = _PROC) -> tuple[float, float]:
    """Used, so that it cannot be had without swapping, and all.

    Raises:
        OSError: The kernel does not tell.
        KeyError: It does not tell these two.
    """
    with (proc / "meminfo").open() as file:
        head = [line.split() for line, _ in zip(file, range(8), strict=False)]
    sizes = {words[0]: int(words[1]) * 1024 for words in head}
    total = sizes["MemTotal:"]
    return float(total - sizes["MemAvailable:"]), float(total)


def _cpu_sensors(sys: Path) -> list[Path]:
    found: list[Path] = []
    for folder in _folders(sys / "class" / "hwmon", "hwmon*"):
        with suppress(OSError):
            if (folder / "name").read_text().strip() in _CPU_SENSORS:
                found += sorted(folder.glob("temp*_input"))
    return found


def _packages(sys: Path) -> list[tuple[Path, float]]:
    """Those whose counters we may read, each with the number at which its counter begins anew."""
    found = []
    for folder in _folders(sys / "class" / "powercap", "intel-rapl:?"):  # AMD's are called so, too
        with suppress(OSError, ValueError):
            int((folder / "energy_uj").read_text())
            if (folder / "name").read_text().startswith("package"):
                found.append((folder, float((folder / "max_energy_range_uj").read_text())))
    return found


def _folders(place: Path, pattern: str) -> Iterable[Path]:
    with suppress(OSError):
        return sorted(place.glob(pattern))
    return ()
