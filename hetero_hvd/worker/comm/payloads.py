"""Bytes of any length between the workers, over the collective operations."""

from __future__ import annotations

import torch

from hetero_hvd.worker.comm.horovod import Collective


def gather_bytes(collective: Collective, payload: bytes, name: str) -> list[bytes]:
    """Everybody's payload, in rank order.

    Each payload travels with its length in front, as an allgather tells nobody where one ends.
    Raises Interrupted if the rendezvous broke.
    """
    framed = len(payload).to_bytes(8, "big") + payload
    column = torch.frombuffer(bytearray(framed), dtype=torch.uint8).reshape(-1, 1)
    joined = bytes(collective.wait(collective.gather_rows_async(column, name)).numpy().tobytes())
    payloads = []
    while joined:
        end = 8 + int.from_bytes(joined[:8], "big")
        payloads.append(joined[8:end])
        joined = joined[end:]
    return payloads


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
