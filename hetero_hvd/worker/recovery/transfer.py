"""Copies one worker's state to others, piece by piece: no worker holds all of it in bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import torch

from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import broadcast_bytes, gather_bytes
from hetero_hvd.worker.recovery.plain import KIND, PARTS, put_together
from hetero_hvd.worker.recovery.replica import Replica, loaded, packed

PIECE_BYTES = 64 * 2**20
"""Sent at once at most; bounds the extra memory."""

CUT_BYTES = 16 * 2**20
"""Of a tensor that is larger. What arrives is copied then: from 32 MiB on its memory would be got
anew from the system for each piece, page by page."""

LARGE_BYTES = 2**20
"""A tensor from this size on is sent from where it is; smaller ones go together."""

SENT = "sent beside"
"""Kind of what stands for a tensor in the state without tensors."""


def copy_state(
    collective: Collective, replica: Replica, source: int, name: str, *, takers: Collection[int]
) -> None:
    """Rank `source`'s state, on every rank that wants it; called by all of them.

    Who has the same state sends a part of each piece, so that nobody else waits for the whole of it
    to pass through one worker. Where more want it than have it, it is broadcast.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        source: Whose state.
        name: Of the operations.
        takers: Ranks that take it over; all others hold the same state.

    Raises:
        Interrupted: The rendezvous broke; nothing was taken over.
        UserError: It does not fit.
    """
    is_taken = collective.rank in takers
    tensors: list[torch.Tensor] = []
    payload = b"" if is_taken else _form(replica, tensors)
    digests = gather_bytes(collective, sha256(payload).digest(), f"{name}.forms")
    holders = [rank for rank, digest in enumerate(digests) if digest == digests[source]]
    payload = broadcast_bytes(collective, payload, source, f"{name}.form")
    state, forms = loaded(payload)
    sizes = [shape.numel() * dtype.itemsize for dtype, shape in forms]
    if is_taken:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in forms]
    has_all = collective.rank in holders
    parts = Parts(collective, holders, sorted(takers))
    scratch = torch.empty(min(sum(sizes), PIECE_BYTES), dtype=torch.uint8)
    for index, piece in enumerate(_pieces(sizes)):
        bodies = [_bytes_of(tensors[n])[cut] for n, cut in piece] if has_all or is_taken else []
        buffer = scratch[: sum(_lengths(piece))]
        if len(bodies) == 1 and not is_accelerator(bodies[0].device):
            buffer = bodies.pop()
        if has_all and bodies:  # from a device, or several
            for place, body in zip(buffer.split(_lengths(piece)), bodies, strict=True):
                place.copy_(body)
        got = parts.send(buffer, source, f"{name}.{index}")
        if got is not None:
            _place(got, piece, tensors)
    if is_taken:
        replica.load(put_together(_filled(state, tensors)))


def _place(got: torch.Tensor, piece: list[tuple[int, slice]], tensors: list[torch.Tensor]) -> None:
    """Put what has arrived into the tensors; what is a whole tensor takes the place of it."""
    first = tensors[piece[0][0]]
    if len(piece) == 1 and len(got) == first.nbytes:
        tensors[piece[0][0]] = got.view(first.dtype).view(first.shape)
        return
    for (number, cut), part in zip(piece, got.split(_lengths(piece)), strict=True):
        place = _bytes_of(tensors[number])[cut]
        if place.data_ptr() != part.data_ptr():
            place.copy_(part)


def _form(replica: Replica, tensors: list[torch.Tensor]) -> bytes:
    """The state without its tensors, which are added to `tensors`."""
    state = replica.parted(lambda tensor: _put(tensor, tensors))
    return packed([state, [(tensor.dtype, tensor.shape) for tensor in tensors]])


class Parts(NamedTuple):
    """Who sends what of a piece to whom.

    Attributes:
        collective: The rendezvous.
        holders: Ranks that have it, in order.
        takers: Ranks that get it, in order.
    """

    collective: Collective
    holders: Sequence[int]
    takers: Sequence[int]

    def send(self, piece: torch.Tensor, source: int, name: str) -> torch.Tensor | None:
        """From the holders to the takers; called by all members.

        Returns:
            On a taker, the piece; None: it is none.
        """
        if len(self.takers) > len(self.holders):
            self.collective.broadcast(piece, source, name)
            return piece if self.collective.rank in self.takers else None
        rank, num_holders = self.collective.rank, len(self.holders)
        rows, counts = piece[:0], [0] * self.collective.size
        if rank in self.holders:
            number = self.holders.index(rank)
            bounds = [len(piece) * n // num_holders for n in (number, number + 1)]
            own = piece[slice(*bounds)]
            rows = own if len(self.takers) == 1 else own.repeat(len(self.takers))
            for taker in self.takers:
                counts[taker] = len(own)
        got = self.collective.exchange(rows, counts, name)
        return got if rank in self.takers else None


def _put(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> dict[str, Any]:
    tensors.append(tensor.contiguous())
    return {KIND: SENT, PARTS: len(tensors) - 1}


def _filled(value: Any, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 - any state
    """With the tensors where they belong."""
    if isinstance(value, dict):
        if value.get(KIND) == SENT:
            return tensors[value[PARTS]]
        for key, item in value.items():
            value[key] = _filled(item, tensors)
    elif isinstance(value, list):
        value[:] = [_filled(item, tensors) for item in value]
    elif type(value) is tuple:
        return tuple(_filled(item, tensors) for item in value)
    return value


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _lengths(piece: Sequence[tuple[int, slice]]) -> list[int]:
    return [cut.stop - cut.start for _, cut in piece]


def _pieces(sizes: Sequence[int]) -> Iterator[list[tuple[int, slice]]]:
    """What goes into each piece: which tensors, and which of their bytes."""
    together: list[tuple[int, slice]] = []
    room = PIECE_BYTES
    for number, size in enumerate(sizes):
        if size >= min(LARGE_BYTES, PIECE_BYTES):
            step = size if size <= PIECE_BYTES else min(CUT_BYTES, PIECE_BYTES)
            for start in range(0, size, step):
                yield [(number, slice(start, min(size, start + step)))]
            continue
        if size > room:
            yield together
            together, room = [], PIECE_BYTES
        if size:
            together.append((number, slice(0, size)))
            room -= size
    if together:
        yield together
