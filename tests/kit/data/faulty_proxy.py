"""A proxy in front of a server of files, whose answers fail, stall or lie when a test wants it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

STALL_SECONDS = 600.0
"""Longer than any client of a test waits."""

FAULTS = ("fail", "stall", "truncate", "short", "garble")
"""An error of the server; no answer; less than was announced; less, as if it were all; other bytes
of the same number."""


class FaultyProxy:
    """Passes requests on, and spoils the answers to some.

    Args:
        upstream: URL of the server.

    Attributes:
        url: Of the proxy.
        seen: Paths with query of the GET requests so far.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.seen: list[str] = []
        self.ended = threading.Event()
        self._planned: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("_Own", (_Connection,), {"proxy": self})
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def spoil(self, name: str, fault: str, times: int) -> None:
        """Spoil the next answers to requests of contents.

        Args:
            name: Last part of the path.
            fault: One of `FAULTS`.
            times: So many answers.
        """
        self._planned[name] = (fault, times)

    def left(self, name: str) -> int:
        """How many answers are still to be spoilt."""
        return self._planned.get(name, ("", 0))[1]

    def fault(self, target: str) -> str:
        """What to do with the answer to a GET request; empty: nothing."""
        with self._lock:
            self.seen.append(target)
            for name, (fault, times) in self._planned.items():
                if times and unquote(urlsplit(target).path).endswith(name):
                    self._planned[name] = (fault, times - 1)
                    return fault
        return ""

    def close(self) -> None:
        """End it."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Run a proxy until the block ends."""
    proxy = FaultyProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Connection(BaseHTTPRequestHandler):
    """One of a client."""

    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"  # clients that ask whether to go on are answered

    def log_message(self, *_: object) -> None:
        """Nothing is told."""

    def _pass_on(self) -> None:
        fault = self.proxy.fault(self.path) if self.command == "GET" else ""
        if fault == "stall":
            self.proxy.ended.wait(STALL_SECONDS)
            self.close_connection = True
            return
        if fault == "fail":
            self.send_error(503)
            return
        status, headers, body = self._answer_of_upstream()
        announced = len(body)
        if fault in ("truncate", "short"):
            body = body[: len(body) // 2]
        if fault == "short":
            announced = len(body)
        if fault == "garble":
            body = bytes(255 - byte for byte in body)
        with suppress(ConnectionError):
            self._send(status, headers, body, announced)
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - http.server's

    def _answer_of_upstream(self) -> tuple[int, list[tuple[str, str]], bytes]:
        place = self.proxy.upstream
        upstream = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        length = int(self.headers.get("Content-Length") or 0)
        upstream.request(
            self.command,
            self.path,
            self.rfile.read(length),
            {n: v for n, v in self.headers.items() if n.lower() != "expect"},
        )
        answer = upstream.getresponse()
        body = answer.read()
        upstream.close()
        return answer.status, answer.getheaders(), body

    def _send(
        self, status: int, headers: list[tuple[str, str]], body: bytes, announced: int
    ) -> None:
        self.send_response_only(status)
        dropped = {"transfer-encoding", "connection"}
        if self.command != "HEAD":
            dropped.add("content-length")
            self.send_header("Content-Length", str(announced))
        for name, value in headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
