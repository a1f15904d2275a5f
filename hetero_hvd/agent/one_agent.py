"""A machine is one node, so of two agents on it only one is of use: the second one says so.

The one that was started last counts for drivers and hubs, which tell of the other one, too; but
whoever starts it reads its own words first.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group (unix(7), SO_PEERCRED)."""


@contextmanager
def only_agent(key: bytes, machine: str, say: Callable[[str], None]) -> Iterator[None]:
    """Be the agent of a machine, or say that another one is; both serve in any case.

    A name among the sockets of this network namespace stands for it, which the kernel frees with
    the process. In another namespace it is not seen.

    Args:
        key: Of the cluster; agents of several clusters do not know of each other.
        machine: Identity of what this agent has of its machine.
        say: Tells people.
    """
    name = "\0hetero_hvd.agent." + hashlib.sha256(key + machine.encode()).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(name)
            held.listen(1)
        except OSError:
            process = _holder(name)
            if process is not None:
                say(
                    f"another agent of this machine is process {process}: a machine is one node, "
                    f"and now this one, process {os.getpid()}, counts; end the other one, or start "
                    "one for both"
                )
        yield


def _holder(name: str) -> int | None:
    """Number of the process that has a name; None: it has ended just now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(1.0)
        try:
            end.connect(name)
        except OSError:
            return None
        told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, _, _ = _CREDENTIALS.unpack(told)
    return int(process)
