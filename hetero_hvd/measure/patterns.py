"""What goes into a measured operation, and what must come out: small integers, so sums are exact.

Imported by workers only (torch).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

PERIOD = 7
"""Values repeat after so many elements: misplaced blocks do not look right."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An operation with its input.

    Attributes:
        op: Of `core.bandwidth.OPERATIONS`.
        tensor: This worker's input, float32, 1-D.
        num_bytes: S of `core.bandwidth`.
        options: Further arguments of the operation.
        expected: What this worker must get; None: it is not looked at.
    """

    op: str
    tensor: torch.Tensor
    num_bytes: int
    options: dict[str, Any] = field(default_factory=dict)
    expected: torch.Tensor | None = None

    def num_wrong(self, found: Any) -> int:  # noqa: ANN401 - what Horovod gives
        """Elements of a result that are not what they must be; all if the shape is another."""
        result = found[0] if isinstance(found, tuple) else found
        if self.expected is None:
            return 0
        if result.shape != self.expected.shape:
            return self.expected.numel()
        return int((result != self.expected).sum())


def pattern_of(op: str, num_elements: int, *, rank: int, size: int, where: torch.device) -> Pattern:
    """Input and expected output of one worker.

    Args:
        op: Of `core.bandwidth.OPERATIONS`.
        num_elements: Of S; rounded up to a multiple of the workers where each gets a part.
        rank: Of this worker.
        size: Number of workers.
        where: Of the tensors.
    """
    part = -(-num_elements // size)
    if op == "allgather":
        parts = [_values(part, where) + other for other in range(size)]
        tensor, expected = parts[rank], torch.cat(parts)
    elif op == "broadcast":
        tensor, expected = _values(num_elements, where) + rank, _values(num_elements, where)
    elif op == "allreduce":
        values = _values(num_elements, where)
        tensor, expected = values + rank, size * values + size * (size - 1) // 2
    elif op == "alltoall":
        tensor = torch.cat([_values(part, where) + rank * size + other for other in range(size)])
        expected = torch.cat([_values(part, where) + other * size + rank for other in range(size)])
    else:
        values = _values(part * size, where)
        total = size * values + size * (size - 1) // 2
        tensor, expected = values + rank, total[rank * part : (rank + 1) * part].clone()
    num_bytes = (expected if op == "allgather" else tensor).nbytes
    options = {"root_rank": 0} if op == "broadcast" else {}
    return Pattern(op=op, tensor=tensor, num_bytes=num_bytes, options=options, expected=expected)


def _values(num_elements: int, where: torch.device) -> torch.Tensor:
    return (torch.arange(num_elements, device=where) % PERIOD).float()
