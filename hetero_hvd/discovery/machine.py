"""Where this machine can be reached, and which GPUs are its own."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from hetero_hvd.core.digits import whole_number
from hetero_hvd.probes.gpu.gpu_records import GpuReport
from hetero_hvd.probes.machine.hardware import gpus, interfaces

_GPUS = Path("/proc/driver/nvidia/gpus")
_MDNS = ("224.0.0.251", 5353)
MAX_ADDRESSES = 8


_PART = re.compile(r"MIG-[A-Za-z0-9/-]{1,46}")
"""The UUID of a part of a GPU, as older drivers name it, too; an advert has room for some."""


def usable_names(found: Sequence[GpuReport], visible: Sequence[str]) -> list[str]:
    """Those before the first that is of no GPU here, which is where CUDA stops reading.

    Args:
        found: The GPUs of the machine; empty: they are not known, and all names count.
        visible: What CUDA_VISIBLE_DEVICES names: indices, or beginnings of UUIDs.
    """
    if not found:
        return list(visible)

    def is_here(name: str) -> bool:
        return bool(_PART.fullmatch(name)) or any(_is_named(gpu, name) for gpu in found)

    return list(takewhile(is_here, visible))


def visible_in(found: Sequence[GpuReport], visible: Sequence[str] | None) -> list[GpuReport]:
    """The GPUs that a process may use.

    Args:
        found: As for `usable_names`.
        visible: The same; None: the variable is not set, and all may be used.
    """
    if visible is None:
        return list(found)
    return [gpu for name in usable_names(found, visible) for gpu in found if _is_named(gpu, name)]


def _is_named(gpu: GpuReport, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == whole_number(name)
    parts = [part.uuid for part in gpu.mig_devices]
    return bool(name) and any((uuid or "").startswith(name) for uuid in (gpu.uuid, *parts))


def gpu_uuids(visible: Sequence[str] | None = None) -> tuple[str, ...]:
    """UUIDs of NVIDIA GPUs, sorted; from NVML and from the kernel, without CUDA.

    Args:
        visible: As for `visible_in`: only these, and of a GPU that is divided the parts that are
            named. None: all of this machine.
    """
    if visible is not None:
        here = gpus()
        names = usable_names(here, visible)
        parts = {name for name in names if _PART.fullmatch(name)}
        whole = [name for name in names if name not in parts]
        return tuple(sorted(parts | {gpu.uuid for gpu in visible_in(here, whole) if gpu.uuid}))
    found = {gpu.uuid for gpu in gpus() if gpu.uuid}
    for path in _GPUS.glob("*/information"):
        for line in path.read_text(errors="replace").splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "GPU UUID":
                found.add(value.strip())
    return tuple(sorted(found))


def own_interfaces() -> tuple[tuple[str, int], ...]:
    """Name and kernel's number of the interfaces that reach others.

    One that was taken away and came back has another number, also where its address is the same:
    sockets that were open on the old one are deaf and dumb.
    """
    found = []
    for interface in interfaces():
        if interface.reaches_others:
            with suppress(OSError):  # it has just gone
                found.append((interface.name, socket.if_nametoindex(interface.name)))
    return tuple(found)


def own_addresses() -> tuple[str, ...]:
    """Addresses at which others may reach this machine: at most 8, the one of the route first."""
    found = [
        address
        for interface in interfaces()
        if interface.reaches_others
        for address in interface.addresses
        if not address.startswith(("127.", "fe80:", "169.254.")) and address != "::1"
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_MDNS)
            best = str(probe.getsockname()[0])
        except OSError:
            best = ""
    ranked = sorted(dict.fromkeys(found), key=lambda address: (address != best, ":" in address))
    return tuple(ranked[:MAX_ADDRESSES])
