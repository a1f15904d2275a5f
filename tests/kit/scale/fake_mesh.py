"""The requests with which Horovod's Gloo makes its mesh, as it makes them: one after the other.

Of each rank, with our `horovod/common/gloo/http_store.cc` and `gloo/rendezvous/context.cc`: its
addresses for all others are put, then those of all ranks are asked for at once.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

ADDRESS_BYTES = 136
"""What Gloo says of one end of a pair: `sockaddr_storage` and a number."""

TIMEOUT_SECONDS = 120.0
OK, NOT_THERE_YET = b"200", b"404"


class MeshBrokenError(Exception):
    """The rendezvous was refused, or this worker is no member of it."""


@dataclass(frozen=True, kw_only=True)
class MeshClient:
    """One worker at its port of the rendezvous; called in a thread of its own.

    Attributes:
        server: Address and port.
        source: The own address.
    """

    server: tuple[str, int]
    source: str

    def next_rank(self, host: str) -> tuple[int, int]:
        """Rank and size in the next membership.

        Raises:
            MeshBrokenError: It is no member.
        """
        answer = self._get(f"rank_and_size/{host}:0").split(b",")
        if len(answer) < 2 or answer[0] == b"-1":  # noqa: PLR2004
            raise MeshBrokenError
        return int(answer[0]), int(answer[1])

    def connect(self, rank: int, size: int) -> None:
        """Meet all others.

        Raises:
            MeshBrokenError: The rendezvous was refused.
        """
        if size == 1:
            return
        self._ask("PUT", f"global/{rank}", bytes(ADDRESS_BYTES * (size - 1)))
        if not self._get(f"global/all.{size}"):
            raise MeshBrokenError

    def _get(self, key: str) -> bytes:
        while True:
            status, body = self._ask("GET", key)
            if status == OK:
                return body
            if status != NOT_THERE_YET:
                raise MeshBrokenError

    def _ask(self, method: str, key: str, body: bytes = b"") -> tuple[bytes, bytes]:
        """One request, on a connection of its own."""
        try:
            with socket.create_connection(
                self.server, TIMEOUT_SECONDS, source_address=(self.source, 0)
            ) as end:
                length = f"Content-Length: {len(body)}\r\n" if body else ""
                end.sendall(f"{method} /{key} HTTP/1.1\r\n{length}\r\n".encode() + body)
                parts = []
                while part := end.recv(2**18):
                    parts.append(part)
        except OSError as error:
            raise MeshBrokenError from error
        head, _, answer = b"".join(parts).partition(b"\r\n\r\n")
        return head.split(b" ", 2)[1] if head else b"", answer


def num_requests(size: int) -> int:
    """That all ranks of a mesh make."""
    return size * (size - 1) // 2 + 2 * size * (size - 1) + 3 * size


def num_bytes(size: int) -> int:
    """Of all addresses that are sent in answer to them."""
    return 2 * size * (size - 1) * ADDRESS_BYTES * (size - 1)
