"""What a collective operation's duration says about the network.

As in nccl-tests (doc/PERFORMANCE.md): `algbw = S / t`, and `busbw = algbw * factor` is what each
link carried in a perfect algorithm, so that it compares with the hardware's speed whatever the
number of workers. S is the size of one worker's tensor; for allgather of all tensors together.
"""

from __future__ import annotations

from hetero_hvd.errors import UserError

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
SMALLEST_BUCKET = 1024
"""Bytes; what is smaller is all latency."""


def size_bucket(num_bytes: int) -> int:
    """The smallest power of two that holds so many bytes, at least `SMALLEST_BUCKET`."""
    return max(SMALLEST_BUCKET, 1 << max(0, num_bytes - 1).bit_length())


def bus_factor(op: str, num_workers: int) -> float:
    """Bus bandwidth / algorithm bandwidth.

    Args:
        op: One of `OPERATIONS`.
        num_workers: Taking part, >= 1.

    Returns:
        0 for a single worker, where nothing travels.

    Raises:
        UserError: There is no such operation.
    """
    if op not in OPERATIONS:
        raise UserError(f"operation {op!r}: must be one of {', '.join(OPERATIONS)}")
    if num_workers == 1:
        return 0.0
    if op == "broadcast":
        return 1.0
    part = (num_workers - 1) / num_workers
    return 2.0 * part if op == "allreduce" else part
