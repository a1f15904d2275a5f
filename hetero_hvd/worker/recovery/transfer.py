"""Copies one worker's state to others, piece by piece: no worker holds all of it in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import broadcast_bytes
from hetero_hvd.worker.recovery.plain import KIND, PARTS, put_together
from hetero_hvd.worker.recovery.replica import Replica, loaded, packed

PIECE_BYTES = 64 * 2**20
"""Sent at once; bounds the extra memory."""

LARGE_BYTES = 2**20
"""A tensor from this size on is sent from where it is; smaller ones go together."""

SENT = "sent beside"
"""Kind of what stands for a tensor in the state without tensors."""


def copy_state(
    collective: Collective, replica: Replica, source: int, name: str, *, is_taken: bool
) -> None:
    """Rank `source`'s state, on every rank that wants it; called by all of them.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        source: Whose state.
        name: Of the operations.
        is_taken: Whether this worker takes it over.

    Raises:
        Interrupted: The rendezvous broke; nothing was taken over.
        UserError: It does not fit.
    """
    tensors: list[torch.Tensor] = []
    payload = b""
    if collective.rank == source:
        state = replica.parted(lambda tensor: _put(tensor, tensors))
        payload = packed([state, [(tensor.dtype, tensor.shape) for tensor in tensors]])
    payload = broadcast_bytes(collective, payload, source, f"{name}.form")
    state, forms = loaded(payload)
    sizes = [shape.numel() * dtype.itemsize for dtype, shape in forms]
    if is_taken:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in forms]
    scratch = torch.empty(min(sum(sizes), PIECE_BYTES), dtype=torch.uint8)
    for index, piece in enumerate(_pieces(sizes)):
        is_mine = collective.rank == source
        bodies = [_bytes_of(tensors[n])[cut] for n, cut in piece] if is_mine or is_taken else []
        buffer = scratch[: sum(cut.stop - cut.start for _, cut in piece)]
        if len(bodies) == 1 and not is_accelerator(bodies[0].device):
            buffer = bodies.pop()
        mine = buffer.split([len(body) for body in bodies]) if bodies else ()
        if is_mine:
            for place, body in zip(mine, bodies, strict=True):
                place.copy_(body)
        collective.broadcast(buffer, source, f"{name}.{index}")
        if is_taken:
            for place, body in zip(mine, bodies, strict=True):
                body.copy_(place)
    if is_taken:
        replica.load(put_together(_filled(state, tensors)))


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


def _pieces(sizes: Sequence[int]) -> Iterator[list[tuple[int, slice]]]:
    """What goes into each piece: which tensors, and which of their bytes."""
    together: list[tuple[int, slice]] = []
    room = PIECE_BYTES
    for number, size in enumerate(sizes):
        if size >= min(LARGE_BYTES, PIECE_BYTES):
            for start in range(0, size, PIECE_BYTES):
                yield [(number, slice(start, min(size, start + PIECE_BYTES)))]
            continue
        if size > room:
            yield together
            together, room = [], PIECE_BYTES
        if size:
            together.append((number, slice(0, size)))
            room -= size
    if together:
        yield together
