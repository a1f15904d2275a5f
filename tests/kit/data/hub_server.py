"""A hub of data sets on this machine, as far as huggingface_hub asks one for what is in it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "tester/files"
REVISION = "a" * 40
TOKEN = "hf_secret_of_the_tester"  # noqa: S105 - for this server only


class HubServer:
    """One data set, which only who has the token may see.

    Attributes:
        url: Of the server.
        files: Name to content; may be changed.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        handler = type("_Own", (_Connection,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def entries(self, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
        """Of a listing, as the hub's API tells them."""
        below = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for name in self.files:
            if not name.startswith(below):
                continue
            parts = name[len(below) :].split("/")
            for depth in range(1, len(parts)):
                path = below + "/".join(parts[:depth])
                found[path] = {"type": "directory", "path": path, "oid": "d" * 40, "size": 0}
            found[name] = self.entry(name)
        wanted = (
            found
            if is_recursive
            else {p: e for p, e in found.items() if "/" not in p[len(below) :]}
        )
        return list(wanted.values())

    def entry(self, name: str) -> dict[str, Any]:
        """Of a file, which is stored by its SHA-256."""
        content = self.files[name]
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"oid": digest, "size": len(content), "pointerSize": 134}
        return {"type": "file", "path": name, "size": len(content), "oid": digest[:40], "lfs": lfs}

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Run a hub until the block ends."""
    hub = HubServer()
    try:
        yield hub
    finally:
        hub.close()


class _Connection(BaseHTTPRequestHandler):
    """One of a client."""

    hub: HubServer

    def log_message(self, *_: object) -> None:
        """Nothing is told."""

    def do_GET(self) -> None:
        """A listing, or a file."""
        url = urlsplit(self.path)
        path = unquote(url.path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "GatedRepo")
        elif tree := re.fullmatch(rf"/api/datasets/{REPOSITORY}/tree/[^/]+/?(.*)", path):
            is_recursive = parse_qs(url.query).get("recursive", [""])[0].lower() == "true"
            found = self.hub.entries(tree[1], is_recursive=is_recursive)
            self._tell(found) if found else self._refuse(404, "EntryNotFound")
        elif re.fullmatch(rf"/api/datasets/{REPOSITORY}(/revision/[^/]+)?", path):
            self._tell({"id": REPOSITORY, "sha": REVISION, "siblings": []})
        elif (file := re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/[^/]+/(.*)", path)) and (
            file[1] in self.hub.files
        ):
            self._give(self.hub.files[file[1]])
        else:
            is_file = path.startswith(f"/datasets/{REPOSITORY}/")
            self._refuse(404, "EntryNotFound" if is_file else "RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """What is known of some paths."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._tell([self.hub.entry(name) for name in body["paths"] if name in self.hub.files])

    def _give(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        part = content
        self.send_response(206 if asked else 200)
        if asked:
            last = min(int(asked[2] or len(content) - 1), len(content) - 1)
            part = content[int(asked[1]) : last + 1]
            self.send_header("Content-Range", f"bytes {asked[1]}-{last}/{len(content)}")
        self._end(part, "application/octet-stream")

    def _tell(self, found: object) -> None:
        self.send_response(200)
        self._end(json.dumps(found).encode(), "application/json")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self._end(b"{}", "application/json")

    def _end(self, body: bytes, kind: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
