"""One port for TLS and for plain text: the first byte of a connection says which it is."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Any

from hetero_hvd.security.connection_limiter import HANDSHAKE_RECORD

FIRST_BYTE_SECONDS = 5.0
RETRY_SECONDS = 1.0


class FirstByte:
    """Hands each connection of a listening socket to one of two servers. For the loop's thread.

    Args:
        listening: What both have in common; does not block.

    Attributes:
        tls: In place of a listening socket, for the server that speaks TLS.
        plain: The same for the one that does not.
    """

    def __init__(self, listening: socket.socket) -> None:
        self.tls = HandedConnections()
        self.plain = HandedConnections()
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept nothing more; the servers close what they were handed."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in list(self._silent):
            self._forget(connection)
            connection.close()

    def _accept(self) -> None:
        try:
            connection, peer = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no file descriptors, for example
            self._loop.remove_reader(self._listening)
            self._loop.call_later(RETRY_SECONDS, self._accept_again)
            return
        connection.setblocking(False)
        self._silent[connection] = self._loop.call_later(
            FIRST_BYTE_SECONDS, self._hand_on, connection, peer
        )
        self._loop.add_reader(connection, self._hand_on, connection, peer)

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _hand_on(self, connection: socket.socket, peer: Any) -> None:  # noqa: ANN401 - an address
        self._forget(connection)
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        if first:
            (self.tls if first == HANDSHAKE_RECORD else self.plain).hand(connection, peer)
        else:
            connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._silent.pop(connection).cancel()


MOST_RINGS = 2**16
"""More than the buffer of a pair of sockets holds, a byte each."""


class HandedConnections(socket.socket):
    """Looks to asyncio like a listening socket; accepts what it is handed."""

    def __init__(self) -> None:
        bell, ours = socket.socketpair()
        super().__init__(ours.family, ours.type, fileno=ours.detach())
        self.setblocking(False)
        bell.setblocking(False)
        self._bell = bell
        self._handed: deque[tuple[socket.socket, Any]] = deque()

    def hand(self, connection: socket.socket, peer: Any) -> None:  # noqa: ANN401 - an address
        """Have this accepted next."""
        if self.fileno() < 0:
            connection.close()
            return
        self._handed.append((connection, peer))
        with suppress(BlockingIOError):  # it is full, and rings until all were accepted
            self._bell.send(b"\0")

    def listen(self, _backlog: int = 0, /) -> None:
        """Nothing is to be done for it."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next one.

        Raises:
            BlockingIOError: There is none.
        """
        found = self._handed.popleft() if self._handed else None
        if not self._handed:
            with suppress(BlockingIOError):
                self.recv(MOST_RINGS)
        if found is None:
            raise BlockingIOError
        return found

    def close(self) -> None:
        """Also close what was not accepted."""
        super().close()
        self._bell.close()
        while self._handed:
            self._handed.popleft()[0].close()
