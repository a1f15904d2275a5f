"""A TLS connection that one thread may read while others write.

OpenSSL allows one thread at a time in a connection's state, and an `ssl.SSLSocket` does not see to
that: it enters OpenSSL without Python's lock, and in CPython 3.13.6 it had a lock that a reader who
waited for the network kept from all writers (gh-137583). Here OpenSSL works in memory, under a
lock, and whoever waits for the network holds none that the other direction needs.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress

CHUNK_BYTES = 65536


class TlsStream(socket.socket):
    """The client's end; looks to websockets like a plain socket. One thread at a time reads.

    Args:
        connected: A TCP connection, which becomes this one's.
        context: With our certificate, and the authority of the other's.
        server_hostname: For whom the other end's certificate must be.
        timeout_seconds: For the whole handshake.

    Raises:
        OSError, ssl.SSLError: There is no connection, or the other end is not who it must be;
            nothing is left open.
    """

    def __init__(
        self,
        connected: socket.socket,
        context: ssl.SSLContext,
        server_hostname: str,
        timeout_seconds: float,
    ) -> None:
        super().__init__(connected.family, connected.type, fileno=connected.detach())
        self._from_network = ssl.MemoryBIO()
        self._to_network = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._from_network, self._to_network, server_hostname=server_hostname
        )
        self._state = threading.Lock()
        self._order = threading.Lock()  # taken before `_state`: what is encrypted first goes first
        try:
            self._shake_hands(time.monotonic() + timeout_seconds)
        except BaseException:
            self.close()
            raise

    def recv(self, bufsize: int = CHUNK_BYTES, flags: int = 0, /) -> bytes:  # noqa: ARG002 - see below
        """All that has come, which may be more than asked for: none may stay where select is blind.

        Returns:
            At least one byte; nothing at the end, in whatever way that comes.

        Raises:
            TimeoutError: Nothing came in the socket's own time.
            OSError, ssl.SSLError: The connection broke, or what came is not genuine.
        """
        while True:
            owes = 0
            try:
                with self._state:
                    try:
                        data, is_over = self._decrypted()
                    finally:
                        owes = self._to_network.pending
            finally:  # an answer of TLS itself, or why it ends the connection
                if owes:
                    self.sendall(b"")
            if data and is_over:  # in one packet: select would wait for one that never comes
                self._end_reading()
            if data or is_over:
                return data
            packet = super().recv(CHUNK_BYTES)
            if not packet:
                return b""
            with self._state:
                self._from_network.write(packet)

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]  # noqa: ARG002 - none are known
        """Send all of it, in one piece among what other threads send; nothing: what TLS has to say.

        Raises:
            OSError, ssl.SSLError: The connection broke.
        """
        with self._order:
            with self._state:
                if data:
                    self._tls.write(data)
                packet = self._to_network.read()
            super().sendall(packet)

    def _end_reading(self) -> None:
        """Let whoever selects this socket see at once that no more will come.

        The other end waits for us to close, and we would for it, until one of us loses patience.
        """
        with suppress(OSError):  # it is gone already
            self.shutdown(socket.SHUT_RD)

    def _decrypted(self) -> tuple[bytes, bool]:
        """What can be read now, and whether the other end has said that no more will come."""
        found = []
        try:
            while chunk := self._tls.read(CHUNK_BYTES):
                found.append(chunk)
        except ssl.SSLWantReadError:
            return b"".join(found), False
        except ssl.SSLZeroReturnError:
            pass
        return b"".join(found), True

    def _shake_hands(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._say(deadline)
            except ssl.SSLError:
                self._say(deadline)  # the other end is told why it fails
                raise
            packet = super().recv(CHUNK_BYTES)
            if not packet:
                raise ConnectionResetError("the other end has gone during the TLS handshake")
            self._from_network.write(packet)
        self._say(deadline)
        self.settimeout(None)

    def _say(self, deadline: float) -> None:
        """Send what the handshake has to say; leaves the rest of the time for the answer."""
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("the TLS handshake took too long")
        self.settimeout(left_seconds)
        if self._to_network.pending:
            super().sendall(self._to_network.read())
