"""A listening port that cannot be filled by those who never say who they are.

Connections that have proved nothing yet are few, in all and of each address: the newest takes the
place of one that is drawn, of the address that has most of them. Were that the oldest, a crowd that
comes faster than it is served would cut off each of its own before that has shaken hands; of those
who may be drawn some always live long enough. So one that is left half-open, before,
during or after its TLS or WebSocket handshake, keeps nobody out, a flood from elsewhere cuts off
none who shakes hands, and takes no file descriptors away: it is cut at the socket, before any of it
is read. A crowd that comes at once waits in the kernel, as few are accepted between two looks at
those who shake hands.
"""

from __future__ import annotations

import errno
import gc
import logging
import resource
import secrets
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Literal

logger = logging.getLogger(__name__)

HANDSHAKE_RECORD = b"\x16"
"""With which TLS begins, and no request in plain text."""

MAX_STRANGERS = 1024
"""As many workers of a large cluster as come back at once, after a failure of the network. Those
that are cut off try again, but their lease runs meanwhile."""

DESCRIPTORS_FOR_EACH = 4
"""No more strangers than a quarter of what this process may have open."""

BACKLOG = 1024
BURST = 8
"""So many are accepted at once."""

COLLECT_EVERY = 64
"""Connections that were refused. What asyncio leaves of a TLS handshake that has failed is a cycle
of half a megabyte; Python's collector, which counts objects, lets hundreds come together."""

COMPLAINT_SECONDS = 10.0


class Warnings(logging.LoggerAdapter[logging.Logger]):
    """For websockets, which has a line for each connection: lets only what went wrong through."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - as logging calls it
        """Whether a line of this level is written."""
        return level >= logging.WARNING and super().isEnabledFor(level)


def plain_address(address: str) -> str:
    """An IPv4 address as people write it, also where the kernel tells it as an IPv6 one."""
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address


def setting_at_fault(error: OSError) -> Literal["address", "port"]:
    """Which of the two cannot be had, where listening has failed."""
    return "port" if error.errno in {errno.EADDRINUSE, errno.EACCES} else "address"


class ConnectionLimiter:
    """Keeps the books of one server's connections. Used in the loop's thread only.

    Args:
        name: Of the server, for the log.
        max_strangers: Connections that may be open without a proof; None: up to 1024.
        max_of_address: So many of them of one address; None: all.

    Attributes:
        refused: Connections that ended without a proof, or were turned away.
    """

    def __init__(
        self, name: str, max_strangers: int | None = None, max_of_address: int | None = None
    ) -> None:
        self.refused = 0
        self._max_strangers = min(max_strangers or MAX_STRANGERS, _max_strangers())
        self._max_of_address = max_of_address or self._max_strangers + 1
        self._name = name
        self._strangers: dict[tuple[Any, ...], _Connection] = {}
        self._complained_at_seconds = -1e9
        self._is_plain: bool | None = False

    def listen(
        self, address: str | None, port: int, *, is_plain: bool | None = False
    ) -> socket.socket:
        """A listening socket for asyncio.

        Args:
            address: Own address; None for all, IPv6 too where there is any.
            port: 0 for any.
            is_plain: Whether it speaks plain text and no TLS; None: both.

        Raises:
            OSError: The address or port cannot be had.
        """
        is_dual = address is None and socket.has_dualstack_ipv6()
        is_v6 = is_dual or (address is not None and ":" in address)
        self._is_plain = is_plain
        end = _Listening(self, socket.AF_INET6 if is_v6 else socket.AF_INET)
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_v6:
                end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
            end.bind((address or ("::" if is_dual else ""), port))
            end.listen()
            end.setblocking(False)
        except OSError:
            end.close()
            raise
        return end

    def authenticated(self, peer: tuple[Any, ...]) -> None:
        """This connection's other end is who it must be.

        Args:
            peer: Its address, as `getpeername` tells it.
        """
        self._strangers.pop(peer[:2], None)

    def tolerate(self, peer: tuple[Any, ...]) -> None:
        """It has asked for what is for everybody: it stays a stranger, but is no refused one."""
        if (connection := self._strangers.get(peer[:2])) is not None:
            connection.is_tolerated = True

    def answered(self, peer: tuple[Any, ...], why_not: str) -> None:
        """It was told why it gets nothing: that is in the log, where it goes without more."""
        if (connection := self._strangers.get(peer[:2])) is not None:
            connection.why_not = why_not

    def refuse(self, peer: tuple[Any, ...], why: str) -> None:
        """Turn this connection away, or count that it left; its owner closes it. Counts once.

        Args:
            peer: As in `proved`.
            why: For the log, where it comes at most every 10 s.
        """
        connection = self._strangers.pop(peer[:2], None)
        if connection is None or connection.is_tolerated:
            return
        self.refused += 1
        if self.refused % COLLECT_EVERY == 0:
            gc.collect()
        now_seconds = time.monotonic()
        if now_seconds - self._complained_at_seconds >= COMPLAINT_SECONDS:
            self._complained_at_seconds = now_seconds
            logger.warning("%s: %s refused: %s; %d so far", self._name, peer[0], why, self.refused)

    def close(self) -> None:
        """Cut off all who have proved nothing; the servers close the others."""
        for peer in list(self._strangers):
            self._cut(peer, "the server closes")

    def came(self, connection: _Connection) -> None:
        """A connection was accepted."""
        self._strangers[connection.peer] = connection
        address = connection.peer[0]
        same = [peer for peer in self._strangers if peer[0] == address]
        if len(same) > self._max_of_address:
            self._cut(_drawn(same), "others came from there")
        elif len(self._strangers) > self._max_strangers:
            self._cut(_drawn(self._of_most()), "others came")

    def went(self, connection: _Connection) -> None:
        """A connection was closed."""
        if self._strangers.get(connection.peer) is connection:
            why = connection.why_not or self._why_gone(connection.first_byte)
            self.refuse(connection.peer, why)

    def _why_gone(self, first_byte: bytes) -> str:
        """Why a connection has ended before it was known who it is, by what it began with."""
        if not first_byte:
            return "it has gone without a word"
        has_tls = first_byte == HANDSHAKE_RECORD
        if has_tls is self._is_plain:
            spoken, served = ("TLS", "plain text") if has_tls else ("plain text", "TLS")
            return f"it has spoken {spoken}, and this port speaks {served}"
        if has_tls:
            return "TLS failed or was broken off: it may have another key, or none"
        return "it has gone before it has shown who it is"

    def _of_most(self) -> list[tuple[Any, ...]]:
        """Those of the address that has most of them; in a tie of all that have as many."""
        counts = Counter(peer[0] for peer in self._strangers)
        most = max(counts.values())
        return [peer for peer in self._strangers if counts[peer[0]] == most]

    def _cut(self, peer: tuple[Any, ...], why: str) -> None:
        connection = self._strangers[peer]
        self.refuse(peer, why)
        with suppress(OSError):  # it has gone by itself
            connection.shutdown(socket.SHUT_RDWR)  # asyncio sees the end and closes it


def _drawn(peers: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """One of them, but not the newest, which would never be served; at least one."""
    return peers[secrets.randbelow(max(1, len(peers) - 1))]


def _max_strangers() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_STRANGERS
    return max(1, min(MAX_STRANGERS, soft // DESCRIPTORS_FOR_EACH))


class _Listening(socket.socket):
    """Tells the door of each connection that asyncio accepts."""

    def __init__(self, door: ConnectionLimiter, family: socket.AddressFamily) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._door = door
        self._left_of_burst = BURST

    def listen(self, _backlog: int = 0, /) -> None:
        """So many wait in the kernel, whatever asyncio thinks of it."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._left_of_burst == 0:
            self._left_of_burst = BURST
            raise BlockingIOError  # asyncio comes again when it has served the others
        self._left_of_burst -= 1
        accepted, peer = super().accept()
        peer = (plain_address(peer[0]), *peer[1:])
        connection = _Connection(self._door, accepted.detach(), peer)
        self._door.came(connection)
        return connection, peer


class _Connection(socket.socket):
    """Tells the door when it is closed."""

    def __init__(self, door: ConnectionLimiter, descriptor: int, peer: tuple[Any, ...]) -> None:
        super().__init__(fileno=descriptor)
        self.peer = peer[:2]  # what is behind it, for IPv6, follows from the address
        self.is_tolerated = False
        self.why_not = ""
        self.first_byte = b""
        self._door = door
        # Only until something has come: what follows costs nothing more.
        self.recv = self._first_recv  # type: ignore[method-assign]
        self.recv_into = self._first_recv_into  # type: ignore[method-assign, assignment]

    def _first_recv(self, size: int, flags: int = 0) -> bytes:
        found = super().recv(size, flags)
        self._began(found[:1])
        return found

    def _first_recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:  # noqa: ANN401 - of bytes
        number = super().recv_into(buffer, size, flags)
        self._began(bytes(buffer[: min(1, number)]))
        return number

    def _began(self, first_byte: bytes) -> None:
        self.first_byte = first_byte
        del self.recv, self.recv_into

    def close(self) -> None:
        super().close()
        self._door.went(self)
