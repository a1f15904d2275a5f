"""What this machine lets this process use: cores, memory, network interfaces, GPUs.

Needs no torch and makes no CUDA call, so that asking costs nothing and changes nothing.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetero_hvd.probes.gpu.gpu_records import GpuReport
from hetero_hvd.probes.gpu.nvml import survey
from hetero_hvd.probes.kernel.control_groups import control_groups
from hetero_hvd.probes.kernel.throttling import CpuQuota

_INTERFACES = Path("/sys/class/net")
_UNKNOWN_SPEED = 65535


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface.

    Attributes:
        name: As the operating system calls it.
        addresses: IPv4 first, then IPv6 without zone; may be empty.
        is_up: It can carry traffic.
        speed_bits_per_second: Of the link; None where the driver does not tell, as virtual ones do.
        mtu_bytes: Largest packet; 0 if unknown.
        rdma_devices: RDMA devices on the same card. Gloo does not use them, NCCL and UCX do.
    """

    name: str
    addresses: tuple[str, ...]
    is_up: bool
    speed_bits_per_second: int | None = None
    mtu_bytes: int = 0
    rdma_devices: tuple[str, ...] = ()

    @property
    def reaches_others(self) -> bool:
        """Whether another machine could be reached through it."""
        found = map(ipaddress.ip_address, self.addresses)
        return self.is_up and any(not (a.is_loopback or a.is_link_local) for a in found)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What this process may use here.

    Attributes:
        host: Name of the machine.
        system: Kernel and architecture.
        cores: Processor cores worth of time, > 0; below the machine's under a quota.
        memory_bytes: Largest use before somebody stops this process.
        interfaces: Network interfaces, by name.
        gpus: CUDA devices, by index; empty where the driver's library cannot be asked.
        ssh: Path of the ssh client; None where there is none.
    """

    host: str
    system: str
    cores: float
    memory_bytes: int
    interfaces: tuple[Interface, ...]
    gpus: tuple[GpuReport, ...]
    ssh: str | None


def probe_hardware() -> Hardware:
    """Look at this machine once, now."""
    return Hardware(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=allowed_cores(),
        memory_bytes=allowed_memory_bytes(),
        interfaces=interfaces(),
        gpus=gpus(),
        ssh=shutil.which("ssh"),
    )


def allowed_cores() -> float:
    """Cores worth of processor time for this process: its affinity, or less under a quota."""
    return min(float(len(os.sched_getaffinity(0))), CpuQuota().cores())


def allowed_memory_bytes() -> int:
    """The machine's memory, or less where a control group says so."""
    limits = [
        _number(folder / file)
        for folder in control_groups("memory")
        for file in ("memory.max", "memory.limit_in_bytes")
    ]
    return min([psutil.virtual_memory().total, *(n for n in limits if n is not None)])


def interfaces() -> tuple[Interface, ...]:
    """All network interfaces with their IPv4 and IPv6 addresses, by name."""
    stats = psutil.net_if_stats()
    return tuple(
        Interface(
            name=name,
            addresses=tuple(
                entry.address.partition("%")[0]
                for family in (socket.AF_INET, socket.AF_INET6)
                for entry in entries
                if entry.family == family
            ),
            is_up=name in stats and stats[name].isup,
            speed_bits_per_second=_speed(stats[name].speed) if name in stats else None,
            mtu_bytes=stats[name].mtu if name in stats else 0,
            rdma_devices=_rdma_devices(name),
        )
        for name, entries in sorted(psutil.net_if_addrs().items())
    )


def _speed(megabits_per_second: int) -> int | None:
    """In bits per second; the kernel says 0 or 65535 (an unsigned -1) where it does not know."""
    is_known = megabits_per_second not in (0, _UNKNOWN_SPEED)
    return megabits_per_second * 1_000_000 if is_known else None


def _rdma_devices(interface: str) -> tuple[str, ...]:
    """Names such as `mlx5_0`, of the PCI function that the interface belongs to."""
    folder = _INTERFACES / interface / "device" / "infiniband"
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def gpus() -> tuple[GpuReport, ...]:
    """CUDA devices according to the driver's own library; none is a normal case."""
    return survey().gpus


def _number(file: Path) -> int | None:
    """The positive number in a control group's file; None where there is none."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
