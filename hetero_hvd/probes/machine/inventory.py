"""All of `hetero-hvd nodes hardware`: what this machine is made of, and what of it we may use."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from hetero_hvd.probes.gpu.gpu_records import GpuReport, GpuSurvey
from hetero_hvd.probes.gpu.nvml import survey
from hetero_hvd.probes.machine.hardware import Interface, allowed_memory_bytes, interfaces
from hetero_hvd.probes.machine.processor import Processor, probe_processor
from hetero_hvd.probes.machine.route import Route, route
from hetero_hvd.probes.machine.storage import Storage, probe_storage

UNSUPPORTED = "not supported"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The main memory.

    Attributes:
        total_bytes: Of the machine.
        available_bytes: What could be had now without swapping.
        allowed_bytes: Largest use before a control group stops this process; the total without one.
        swap_bytes: Size of all swap.
    """

    total_bytes: int
    available_bytes: int
    allowed_bytes: int
    swap_bytes: int


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What this machine is made of.

    Attributes:
        host: Name of the machine.
        system: Kernel and architecture.
        processor: CPUs.
        memory: Main memory.
        interfaces: Network interfaces, by name.
        route: Which of them training will use.
        storage: What the asked path lies on.
        gpus: GPUs and their driver.
    """

    host: str
    system: str
    processor: Processor
    memory: Memory
    interfaces: tuple[Interface, ...]
    route: Route
    storage: Storage
    gpus: GpuSurvey

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists, numbers and strings, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """All of it for a person to read; no newline at the end."""
        return "\n".join(f"{label:<12}{value}" for label, value in _lines(self))


def take_inventory(path: Path, *, towards: str | None = None) -> Inventory:
    """Look at this machine once, now; makes no CUDA call.

    Args:
        path: Where the data set lies.
        towards: Address of the driver's machine; None: any other machine.

    Raises:
        UserError: `path` does not exist, or `towards` has no address.
    """
    found, memory = interfaces(), psutil.virtual_memory()
    return Inventory(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=probe_processor(),
        memory=Memory(
            total_bytes=memory.total,
            available_bytes=memory.available,
            allowed_bytes=allowed_memory_bytes(),
            swap_bytes=psutil.swap_memory().total,
        ),
        interfaces=found,
        route=route(found, towards),
        storage=probe_storage(path),
        gpus=survey(),
    )


def _lines(inventory: Inventory) -> Iterator[tuple[str, str]]:
    cpu, memory, storage = inventory.processor, inventory.memory, inventory.storage
    yield "host", f"{inventory.host}, {inventory.system}"
    cores = f", {cpu.num_cores} cores" if cpu.num_cores else ""
    yield "processor", f"{cpu.model}: {cpu.num_cpus} logical CPUs{cores}"
    yield "  allowed", f"{cpu.allowed_cores:g} cores, on {len(cpu.affinity)} logical CPUs"
    yield "  simd", " ".join(cpu.simd) or "none known"
    for node in cpu.numa_nodes:
        yield f"  numa {node.index}", f"CPUs {node.cpus}"
    yield "memory", f"{_gib(memory.total_bytes)}, {_gib(memory.available_bytes)} available"
    if memory.allowed_bytes < memory.total_bytes:
        yield "  allowed", f"{_gib(memory.allowed_bytes)}, by a control group"
    for interface in inventory.interfaces:
        yield "interface", _interface_words(interface)
    chosen = inventory.route
    yield "  Horovod", f"{chosen.interface or 'none'}: {chosen.reason}"
    yield "storage", f"{storage.path}: {storage.file_system} at {storage.mount} ({storage.device})"
    writable = ", read-only" if storage.is_read_only else ""
    free, total = _gib(storage.free_bytes), _gib(storage.total_bytes)
    yield "  ", f"{storage.kind}, {free} of {total} free{writable}"
    if inventory.gpus.driver_version:
        versions = f"{inventory.gpus.driver_version}, CUDA up to {inventory.gpus.cuda_version}"
        yield "GPU driver", versions
    for gpu in inventory.gpus.gpus:
        yield from _gpu_lines(gpu)
    if not inventory.gpus.gpus:
        yield "GPU", "none"
    if inventory.gpus.problem:
        yield "problem", inventory.gpus.problem


def _interface_words(interface: Interface) -> str:
    speed = interface.speed_bits_per_second
    words = [
        f"{interface.name}{'' if interface.is_up else ' (down)'}:",
        ", ".join(interface.addresses) or "no address",
        f"({f'{speed / 1e9:g} Gbit/s' if speed else 'speed unknown'}, MTU {interface.mtu_bytes}",
    ]
    rdma = f", RDMA {', '.join(interface.rdma_devices)}" if interface.rdma_devices else ""
    return " ".join(words) + rdma + ")"


def _gpu_lines(gpu: GpuReport) -> Iterator[tuple[str, str]]:
    yield f"GPU {gpu.index}", f"{gpu.name}, {gpu.uuid or UNSUPPORTED}"
    capability = gpu.compute_capability or UNSUPPORTED
    yield "  memory", f"{_gib(gpu.memory_bytes)}, ECC {_mode(gpu.is_ecc)}"
    yield "  compute", f"capability {capability}, MIG {_mode(gpu.is_mig)}"
    for part in gpu.mig_devices:
        yield "    part", f"{part.uuid or UNSUPPORTED}, {_gib(part.memory_bytes)}"
    now = f"generation {_or(gpu.pcie_generation)} x{_or(gpu.pcie_width)}"
    yield "  PCIe", f"{now}; at most {_or(gpu.max_pcie_generation)} x{_or(gpu.max_pcie_width)}"
    yield "  NVLink", f"{_or(gpu.num_nvlinks)}{' links up' if gpu.num_nvlinks is not None else ''}"
    clocks = f"{_mega(gpu.clock_hertz)}, at most {_mega(gpu.max_clock_hertz)}"
    yield "  clock", f"{clocks}; memory {_mega(gpu.memory_clock_hertz)}"
    limit = f"{_or(gpu.power_limit_watts)} W, as delivered {_or(gpu.default_power_limit_watts)} W"
    yield "  power", f"limit {limit}"
    reasons = gpu.throttle_reasons
    yield "  held back", UNSUPPORTED if reasons is None else ", ".join(reasons) or "no"
    for problem in gpu.problems:
        yield "  problem", problem


def _gib(size_bytes: int | None) -> str:
    return UNSUPPORTED if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def _mega(hertz: float | None) -> str:
    return UNSUPPORTED if hertz is None else f"{hertz / 1e6:g} MHz"


def _mode(is_on: bool | None) -> str:
    return UNSUPPORTED if is_on is None else "on" if is_on else "off"


def _or(value: float | None) -> str:
    return UNSUPPORTED if value is None else f"{value:g}"
