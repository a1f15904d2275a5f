"""Horovod's connections, as far as the operating system shows them.

When a peer's machine is out of reach nothing arrives any more, not even the end of the connection:
Gloo would wait for its whole timeout (30 s by default). Cutting the connections ends the wait.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> dict[int, int]:
    """Descriptor to inode of every socket of this process; empty where there is no /proc."""
    found = {}
    with suppress(OSError):
        # Names alone: a Path for each would take most of the time.
        for descriptor in map(int, os.listdir(DESCRIPTORS)):  # noqa: PTH208
            with suppress(OSError):  # closed meanwhile
                status = os.fstat(descriptor)
                if stat.S_ISSOCK(status.st_mode):
                    found[descriptor] = status.st_ino
    return found


def connections(sockets: dict[int, int]) -> dict[int, tuple[str, str]]:
    """Descriptor to the addresses of both ends, ours first, of those that are TCP connections.

    Args:
        sockets: As `open_sockets` gave them; a descriptor that means something else now is left.
    """
    found = {}
    for descriptor, inode in sockets.items():
        with suppress(OSError), _looked_at(descriptor, inode) as end:
            if _is_tcp(end):
                found[descriptor] = (_address(end.getsockname()), _address(end.getpeername()))
    return found


def cut(sockets: dict[int, int], *, except_port: int) -> None:
    """End these TCP sockets, so that every wait for them ends; their owners close them later.

    Sockets that listen are ended too: who waits for a dead peer to connect waits for ever.

    Args:
        sockets: As `open_sockets` gave them; a descriptor that means something else now is left.
        except_port: Connections to this port stay: a request to the driver would be repeated.
    """
    for descriptor, inode in sockets.items():
        with suppress(OSError), _looked_at(descriptor, inode) as end:
            if _is_tcp(end) and _port_of_peer(end) != except_port:
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def _looked_at(descriptor: int, inode: int) -> Iterator[socket.socket]:
    """A socket by its descriptor; OSError if that was closed, or means something else now."""
    copy = os.dup(descriptor)
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        raise OSError(f"descriptor {descriptor} was closed and opened again")
    with socket.socket(fileno=copy) as end:
        yield end


def _is_tcp(end: socket.socket) -> bool:
    return end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM


def _port_of_peer(end: socket.socket) -> int | None:
    try:
        port: int = end.getpeername()[1]
    except OSError:  # it listens, or is not connected yet
        return None
    return port


def _address(name: tuple[str, int]) -> str:
    return f"{name[0].removeprefix('::ffff:')} {name[1]}"
