"""Horovod's connections, as far as the operating system shows them.

When a peer's machine is out of reach nothing arrives any more, not even the end of the connection:
Gloo would wait for its whole timeout (30 s by default). Cutting the connections ends the wait.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def open_sockets() -> dict[int, int]:
    """Descriptor to inode of every socket of this process; empty where there is no /proc."""
    found = {}
    with suppress(OSError):
        for entry in DESCRIPTORS.iterdir():
            with suppress(OSError):  # closed meanwhile
                if entry.readlink().name.startswith("socket:"):
                    found[int(entry.name)] = entry.stat().st_ino
    return found


def cut(sockets: dict[int, int], *, except_port: int) -> None:
    """End these connections, so that every wait for them ends; their owners close them later.

    Sockets that listen are ended too: who waits for a dead peer to connect waits for ever.

    Args:
        sockets: As `open_sockets` gave them; a descriptor that means something else now is left.
        except_port: Connections to this port stay: a request to the driver would be repeated.
    """
    for descriptor, inode in sockets.items():
        with suppress(OSError):  # closed meanwhile
            copy = os.dup(descriptor)
            with socket.socket(fileno=copy) as end:
                if os.fstat(copy).st_ino == inode and _port_of_peer(end) != except_port:
                    end.shutdown(socket.SHUT_RDWR)


def _port_of_peer(end: socket.socket) -> int | None:
    if end.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        port: int = end.getpeername()[1]
    except OSError:  # it listens, or is not connected yet
        return None
    return port
