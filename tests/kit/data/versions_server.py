"""A web server that gives who asks otherwise another content behind the same path."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class VersionsServer:
    """Files, of which there may be several versions; with index pages, and parts of files.

    The version is that of the query, of the header `X-Version`, or the name of the user.

    Attributes:
        url: Of the server.
        files: Path, such as `/a/x.txt`, and version, to content; may be changed.
        signature: Which the query of each request must have; empty: none.
        seen: Paths with query of the GET requests for files so far.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.signature = ""
        self.seen: list[str] = []
        handler = type("_Own", (_Connection,), {"server_of_versions": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def versions_server() -> Iterator[VersionsServer]:
    """Run a server until the block ends."""
    server = VersionsServer()
    try:
        yield server
    finally:
        server.close()


class _Connection(BaseHTTPRequestHandler):
    """One of a client."""

    server_of_versions: VersionsServer

    def log_message(self, *_: object) -> None:
        """Nothing is told."""

    def do_GET(self) -> None:
        """A file, a part of one, or the page of a folder."""
        server, url = self.server_of_versions, urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        if server.signature and server.signature not in query.get("X-Amz-Signature", []):
            self._answer(403, b"", "text/plain")
            return
        version = query.get("version", [""])[0] or self.headers.get("X-Version") or self._user()
        content = server.files.get((path, version))
        if content is not None:
            if self.command == "GET":
                server.seen.append(self.path)
            self._give(content)
            return
        folder = f"{path.rstrip('/')}/"
        below = {name[len(folder) :] for name, of in server.files if name.startswith(folder)}
        names = {name.partition("/")[0] + "/" * ("/" in name) for name in below}
        page = "".join(f'<a href="{name}">{name}</a>' for name in sorted(names))
        self._answer(200 if names else 404, page.encode(), "text/html")

    do_HEAD = do_GET  # noqa: N815

    def _user(self) -> str:
        given = (self.headers.get("Authorization") or "").removeprefix("Basic ")
        return base64.b64decode(given).decode().partition(":")[0]

    def _give(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            self._answer(200, content, "application/octet-stream")
            return
        last = min(int(asked[2] or len(content) - 1), len(content) - 1)
        self._answer(206, content[int(asked[1]) : last + 1], "application/octet-stream")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
