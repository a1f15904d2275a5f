"""How much memory the workers have left: the part of the verdict that is about memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hetero_hvd.messages import Finding, StepTiming, WorkerId

TIGHT_RATIO = 0.1
"""The trainer itself keeps so much of the limit free; with less it makes micro-batches smaller."""

GIB = 2**30


def memory_room(rows: Mapping[WorkerId, StepTiming]) -> Finding:
    """Judge the worker that has the smallest part of its memory left; O(workers).

    Args:
        rows: A mean row of each member that has work.

    Returns:
        INCOMPLETE where the peak or the limit of one of them was not measured.
    """
    left = {worker: _left_ratio(row) for worker, row in rows.items()}
    if not left or not all(map(math.isfinite, left.values())):
        words = "memory head room: not every worker's peak and limit is measured"
        return Finding(kind="memory", is_complete=False, words=words)
    worker = min(left, key=left.__getitem__)
    row, ratio = rows[worker], left[worker]
    most = f"{worker} uses {row.memory_bytes / GIB:.2f} of {row.memory_limit_bytes / GIB:.2f} GiB"
    evidence = {
        "headroom_ratio": ratio,
        "memory_bytes": row.memory_bytes,
        "memory_limit_bytes": row.memory_limit_bytes,
    }
    words, next_step = f"memory: {ratio:.0%} or more is left everywhere; {most}", ""
    if ratio < TIGHT_RATIO:
        words = f"memory is tight: {most}, {ratio:.0%} are left"
        next_step = f"more memory for {worker.node}, micro_batch_size, or a smaller model"
    return Finding(
        kind="memory",
        is_complete=True,
        worker=worker,
        words=words,
        evidence=evidence,
        next_step=next_step,
    )


def _left_ratio(row: StepTiming) -> float:
    if not row.memory_limit_bytes > 0:
        return math.nan
    return max(0.0, 1.0 - row.memory_bytes / row.memory_limit_bytes)
