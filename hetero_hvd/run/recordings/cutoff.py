"""HTTP requests that end in time, however slowly a server sends.

urllib's timeout is of each wait for a byte: who sends one now and then, of a handshake, of headers
or of a body, would hold it for ever. So a timer ends the connection itself, whatever is waited for.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Cutoff:
    """A time after which whatever is open is ended; a context manager.

    Only looking a name up has other bounds: those of the resolver. Each address of a name has the
    timeout of the connection.

    Args:
        seconds: From now on, >= 0.
    """

    def __init__(self, seconds: float) -> None:
        self._at_seconds = time.monotonic() + seconds
        self._has_ended = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    @property
    def is_over(self) -> bool:
        """Whether the time has passed; then nothing that was read is whole."""
        return self._has_ended or time.monotonic() >= self._at_seconds

    @property
    def left_seconds(self) -> float:
        """For the timeout of a connection, > 0."""
        return max(self._at_seconds - time.monotonic(), 1e-3)

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the time has passed."""
        time.sleep(min(seconds, self.left_seconds))

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def watch(self, connection: socket.socket) -> None:
        """End this connection, too. Its descriptor is copied, since TLS takes it over."""
        with self._lock:
            copy = socket.socket(fileno=os.dup(connection.fileno()))
            self._sockets.append(copy)
            if self.is_over:
                _shut(copy)

    def _end(self) -> None:
        with self._lock:
            self._has_ended = True
            for each in self._sockets:
                _shut(each)


def _shut(connection: socket.socket) -> None:
    """Whoever waits for it is woken, which closing it would not do."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class CutoffHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """For urllib: its connections are ended by a cutoff, from their first byte on.

    Args:
        cutoff: When.
        context: Of https.
    """

    def __init__(self, cutoff: Cutoff, context: ssl.SSLContext) -> None:
        super().__init__()
        self._cutoff = cutoff
        self._tls = context

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Called by urllib."""
        return self.do_open(partial(_PlainConnection, cutoff=self._cutoff), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Called by urllib."""
        made = partial(_TlsConnection, cutoff=self._cutoff, context=self._tls)
        return self.do_open(made, req)


class _CutConnection:
    """Tells its cutoff of its socket before anything is said on it, to a proxy neither."""

    def __init__(self, host: str, *, timeout: float, cutoff: Cutoff, **tls: ssl.SSLContext) -> None:
        self._cutoff = cutoff
        self._socket: socket.socket | None = None
        super().__init__(host, timeout=timeout, **tls)  # type: ignore[call-arg]

    @property
    def sock(self) -> socket.socket | None:
        """Set by http.client: the plain one first, and over that TLS."""
        return self._socket

    @sock.setter
    def sock(self, value: socket.socket | None) -> None:
        if value is not None and self._socket is None:
            self._cutoff.watch(value)
        self._socket = value


class _PlainConnection(_CutConnection, http.client.HTTPConnection):
    pass


class _TlsConnection(_CutConnection, http.client.HTTPSConnection):
    pass
