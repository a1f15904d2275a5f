"""Sockets in folders of this machine: who may connect is up to the file system."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from hetero_hvd.errors import job_error

REMOVES_NOTHING: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""From Python 3.13 on asyncio looks for the socket's file, to remove it in the end; but the path by
which it was bound does not last."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group (unix(7), SO_PEERCRED)."""


BACKLOG = 100
"""As asyncio has it."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class PeerUser(NamedTuple):
    """Who has connected, as the kernel says.

    Attributes:
        uid: The user.
        name: Of the user; a number where the machine has no name for it.
    """

    uid: int
    name: str


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A socket's path through an open descriptor: a path of its own has 108 bytes at most."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)  # who may not list it may pass
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def bound(path: Path, mode: int) -> socket.socket:
    """A socket of this name, in the place of one that is there.

    Raises:
        OSError: It cannot be made.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(end.fileno(), mode)  # before it has a name: nobody is ever faster
        path.unlink(missing_ok=True)
        with short_path(path) as short:
            end.bind(short)
            Path(short).chmod(mode)  # what the umask has taken away
    except OSError:
        end.close()
        raise
    return end


class LocalServer:
    """Has the name from `listen` to `close`. Used in the loop's thread.

    Args:
        path: Of the socket.
        serve: Called with each connection.
        mode: Of the socket: who may connect.
        max_line_bytes: Of what is read by lines.
        backlog: So many may wait to be accepted.
    """

    def __init__(
        self, path: Path, serve: Serve, *, mode: int, max_line_bytes: int, backlog: int = BACKLOG
    ) -> None:
        self._path = path
        self._serve = serve
        self._mode = mode
        self._max_line_bytes = max_line_bytes
        self._backlog = backlog
        self._server: asyncio.AbstractServer | None = None

    async def listen(self) -> None:
        """Accept connections, in the place of whoever had the name.

        Raises:
            JobError: The socket cannot be made.
        """
        try:
            end = bound(self._path, self._mode)
        except OSError as error:
            words = f"{self._path} cannot be made: {error.strerror}"
            raise job_error(words, error) from error
        self._server = await asyncio.start_unix_server(
            self._serve,
            sock=end,
            limit=self._max_line_bytes,
            backlog=self._backlog,
            **REMOVES_NOTHING,
        )

    def close(self) -> None:
        """Accept no more."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def is_served(path: Path) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with short_path(path) as short, socket.socket(socket.AF_UNIX) as end:
            end.setblocking(False)
            end.connect(short)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def answer_to(path: Path, asked: bytes, *, wait_seconds: float, max_bytes: int = -1) -> bytes:
    """Say something to who listens there, and get one line back; nothing: it has ended.

    Where many come at once, they wait for each other; who is refused reads why.

    Args:
        path: Of the socket.
        asked: What to say.
        wait_seconds: For each part of it.
        max_bytes: Of the line; -1: any.

    Raises:
        OSError: Nobody answers.
    """
    with short_path(path) as short, socket.socket(socket.AF_UNIX) as end:
        _connect(end, short, wait_seconds)
        end.settimeout(wait_seconds)
        with suppress(BrokenPipeError, ConnectionResetError):
            end.sendall(asked)
        return end.makefile("rb").readline(max_bytes)


def _connect(end: socket.socket, path: str, wait_seconds: float) -> None:
    """Connect, as soon as there is room among those who wait to be accepted.

    Raises:
        OSError: Nobody listens, or accepts.
    """
    deadline = time.monotonic() + wait_seconds
    end.setblocking(False)
    while True:
        try:
            return end.connect(path)
        except BlockingIOError:  # of this kind of socket: too many wait already
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def peer_of(end: socket.socket) -> PeerUser:
    """Who is at the other end."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(told)
    return PeerUser(uid, user_name(uid))


def user_name(uid: int) -> str:
    """Of a user; a number where the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
