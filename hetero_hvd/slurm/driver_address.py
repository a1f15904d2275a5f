"""Where a driver is, for agents that were started without knowing it: a file that all nodes see."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero_hvd.discovery.machine import own_addresses
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import job_error
from hetero_hvd.whole_file import AS_THE_UMASK_HAS_IT, write_whole

FILE = "driver.address"
LOOPBACK = "127.0.0.1"
"""Of a machine without a network: its own agents find it."""


def free_port() -> int:
    """A UDP port of this machine that nobody has; somebody may take it before it is used."""
    is_dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("", 0))
        port: int = end.getsockname()[1]
        return port


@contextmanager
def told_address(folder: Path, port: int, host: str | None = None) -> Iterator[Sequence[str]]:
    """Have the file while the driver is there; who reads it finds all of it or nothing.

    Where another driver's has taken its place, that one stays.

    Args:
        folder: In which the file is.
        port: UDP, where the driver listens.
        host: How it is reached; None: by any address of this machine.

    Returns:
        Its lines, `HOST:PORT` each.

    Raises:
        JobError: The file cannot be written.
    """
    hosts = (host,) if host else own_addresses() or (LOOPBACK,)
    lines = [str(AnnounceTarget(each, port)) for each in hosts]
    text = "".join(f"{line}\n" for line in lines)
    path = folder / FILE
    try:
        write_whole(path, text.encode(), mode=AS_THE_UMASK_HAS_IT)
    except OSError as error:
        raise job_error(f"{path}: cannot be written: {error.strerror}", error) from error
    try:
        yield lines
    finally:
        with suppress(OSError, UnicodeDecodeError):
            if path.read_text() == text:
                path.unlink()
