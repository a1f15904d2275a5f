"""Who is late, and what communication costs, from the waits of all workers: no clock is compared.

A reduction ends for all at about the same instant, so who waited longest was ready first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_hvd.messages import StepTiming


def lateness_seconds(rows: Sequence[StepTiming]) -> tuple[float, ...]:
    """How much later than the first one each worker was ready, seconds per step.

    `lateness_i = max wait - own wait`. NaN where a wait was not measured.

    Args:
        rows: One per worker, of the same steps.
    """
    longest = max(_waits(rows), default=math.nan)
    return tuple(longest - row.comm_wait_seconds if row.num_steps else math.nan for row in rows)


def exposed_seconds(rows: Sequence[StepTiming]) -> float:
    """Communication that nobody could hide, seconds per step; NaN if no wait was measured.

    It is what even the last worker to be ready waits; what others wait beyond is its lateness.

    Args:
        rows: One per worker, of the same steps.
    """
    return min(_waits(rows), default=math.nan)


def _waits(rows: Sequence[StepTiming]) -> list[float]:
    waits = [row.comm_wait_seconds for row in rows if row.num_steps]
    return [wait for wait in waits if math.isfinite(wait)]
