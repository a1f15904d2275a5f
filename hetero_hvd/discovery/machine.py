"""Who this machine is, whatever it is called: for one entry per machine and one worker per GPU."""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from pathlib import Path

from hetero_hvd.probes.machine.hardware import gpus, interfaces

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_NETWORK = Path("/proc/self/ns/net")
_GPUS = Path("/proc/driver/nvidia/gpus")
_MDNS = ("224.0.0.251", 5353)
MAX_ADDRESSES = 8


def machine_identity() -> str:
    """32 hexadecimal digits, the same under all names and addresses of this machine.

    A kernel draws a number when it boots: disk images are copied with their machine id, kernels
    that run are not. Where there is none, the machine id counts, and without that the host's name.
    A container with a network of its own is a machine of its own; that two of them do not use one
    GPU is seen by the GPU's UUID. None of these numbers is given away: a hash is.
    """
    machine = _first_of(_BOOT_ID, _MACHINE_ID) or socket.gethostname().encode()
    try:
        network = str(_NETWORK.stat().st_ino)
    except OSError:
        network = ""
    digest = hashlib.sha256(b"hetero_hvd machine " + machine + b" " + network.encode())
    return digest.hexdigest()[:32]


def _first_of(*paths: Path) -> bytes:
    """What is in the first file that has something in it."""
    for path in paths:
        with suppress(OSError):
            if content := path.read_bytes().strip():
                return content
    return b""


def gpu_uuids() -> tuple[str, ...]:
    """UUIDs of this machine's NVIDIA GPUs, sorted; from NVML and from the kernel, without CUDA."""
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
