"""Bytes of any length between the workers, over the collective operations."""

from __future__ import annotations

import torch

from hetero_hvd.worker.comm.horovod import Collective

GATHER_BYTES = 2**30
"""The payloads of one allgather on all ranks; Gloo counts its elements in an int of 32 bits."""

LENGTH_BYTES = 8


def gather_bytes(collective: Collective, payload: bytes, name: str) -> list[bytes]:
    """Everybody's payload, in rank order.

    Each payload travels with its length in front, as an allgather tells nobody where one ends.
    What does not fit into one allgather goes in pieces; the first ones tell how many there are.
    Raises Interrupted if the rendezvous broke.
    """
    piece = max(1, GATHER_BYTES // collective.size)
    parts = _gather_piece(collective, payload, 0, piece, name)
    lengths = [length for length, _ in parts]
    payloads = [bytearray(content) for _, content in parts]
    for index, start in enumerate(range(piece, max(lengths), piece), start=1):
        parts = _gather_piece(collective, payload, start, piece, f"{name}.{index}")
        for joined, (_, content) in zip(payloads, parts, strict=True):
            joined.extend(content)
    return [bytes(joined) for joined in payloads]


def _gather_piece(
    collective: Collective, payload: bytes, start: int, num_bytes: int, name: str
) -> list[tuple[int, bytes]]:
    """Of each rank in order: how long its payload is, and the piece of it that begins there."""
    content = payload[start : start + num_bytes]
    header = len(payload).to_bytes(LENGTH_BYTES, "big") + len(content).to_bytes(LENGTH_BYTES, "big")
    column = torch.frombuffer(bytearray(header + content), dtype=torch.uint8).reshape(-1, 1)
    rows = collective.wait(collective.gather_rows_async(column, name)).numpy().tobytes()
    joined = memoryview(rows)
    parts, at = [], 0
    while at < len(joined):
        begin = at + 2 * LENGTH_BYTES
        length = int.from_bytes(joined[at : at + LENGTH_BYTES], "big")
        at = begin + int.from_bytes(joined[at + LENGTH_BYTES : begin], "big")
        parts.append((length, bytes(joined[begin:at])))
    return parts


def broadcast_bytes(collective: Collective, payload: bytes, root: int, name: str) -> bytes:
    """Rank `root`'s payload, on every rank; the others' argument is ignored.

    Raises Interrupted if the rendezvous broke.
    """
    length = torch.tensor([len(payload)], dtype=torch.int64)
    collective.broadcast(length, root, f"{name}.length")
    if collective.rank == root:
        buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    else:
        buffer = torch.empty(int(length), dtype=torch.uint8)
    collective.broadcast(buffer, root, name)
    return buffer.numpy().tobytes()
