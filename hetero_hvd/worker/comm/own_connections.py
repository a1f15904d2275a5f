"""Which of this process's sockets are Horovod's."""

from __future__ import annotations

from hashlib import blake2b

import torch

from hetero_hvd.worker.comm.sockets import connections, cut, open_sockets


class OwnConnections:
    """Horovod's connections: both ends are new, one here and one at another worker.

    The script may open others meanwhile, in a thread. Until all have told of theirs, all that
    were opened since `begin` count as own.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A rendezvous is entered: what is open now is somebody else's."""
        self._before = open_sockets()
        self._own: dict[int, int] | None = None

    def rows(self, rank: int) -> torch.Tensor:
        """What to tell the others once all connections are there: who it is, and its ends."""
        self._new = self._opened()
        self._ends = connections(self._new)
        own = [[rank, _digest(near, far)] for near, far in self._ends.values()]
        return torch.tensor([[rank, 0], *own], dtype=torch.int64)

    def told(self, rows: torch.Tensor, rank: int, size: int) -> None:
        """All have told.

        Args:
            rows: Of all workers.
            rank: This worker's.
            size: Workers.
        """
        theirs = {digest for other, digest in rows.tolist() if other != rank}
        found = {
            descriptor: self._new[descriptor]
            for descriptor, (near, far) in self._ends.items()
            if _digest(far, near) in theirs
        }
        if len(found) < size - 1:  # something between them changes addresses
            found = {descriptor: self._new[descriptor] for descriptor in self._ends}
        self._own = found

    def cut(self, *, except_port: int) -> None:
        """End them; while a rendezvous forms, all that were opened since. See `sockets.cut`."""
        cut(self._opened() if self._own is None else self._own, except_port=except_port)

    def _opened(self) -> dict[int, int]:
        return dict(open_sockets().items() - self._before.items())


def _digest(one: str, other: str) -> int:
    """A number of 63 bits that stands for a connection, as one end sees it."""
    digest = blake2b(f"{one} {other}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
