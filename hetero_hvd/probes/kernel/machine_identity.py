"""Who this machine is, whatever it is called. Standard library only: a supervisor costs little."""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_NETWORK = Path("/proc/self/ns/net")


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
