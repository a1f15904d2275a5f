"""How fast a job is on a set of unlike devices, predicted.

The step of a data-parallel job takes as long as its devices compute, which our balancer lets them
do for equally long, and as they communicate: a unit of work takes 1 / sum of rates + c log2(n)
seconds on n devices. Gavel's published rates on 1, 2, 4 and 8 equal devices (Narayanan et al., OSDI
2020) are nearest to a cost that grows with the logarithm: the tree of a reduction. A set is as slow
to communicate as its slowest link. Where links were measured, their part is that of a ring: each of
n devices sends and receives 2 (n - 1) / n of the bytes (Patarasuk and Yuan, JPDC 2009). What of all
this lies beside the computation costs nothing, up to a share of that which the job has shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

BALANCED_RATIO = 0.95
"""What shares that follow the speeds reach of the sum of unlike devices' rates; we measured 0.95 to
0.99 (docs/benchmarks.md)."""

LOG2 = (0.0, 0.0, *(math.log2(n) for n in range(2, 4097)))
"""Doublings up to n devices; taking the logarithm anew costs more than all else here."""

RING = (0.0, *(2.0 * (n - 1) / n for n in range(1, 4097)))
"""What each of n devices of a ring sends, as a multiple of the reduced bytes."""


def rate_of(
    total: float,
    communication_seconds: float,
    count: int,
    *,
    is_mixed: bool,
    link_seconds: float = 0.0,
    hidden_ratio: float = 0.0,
) -> float:
    """Units of work per second.

    Args:
        total: Sum of the devices' own rates, units of work per second, >= 0.
        communication_seconds: Of the slowest link, per unit of work and doubling, >= 0.
        count: Number of devices, >= 0.
        is_mixed: Whether they are of several kinds.
        link_seconds: Of the slowest link that is used, as measured, for the bytes that a unit of
            work reduces, >= 0.
        hidden_ratio: So much of the computation may have communication beside it, 0 to 1.
    """
    if not total:
        return 0.0
    if is_mixed:
        total *= BALANCED_RATIO
    ratio = communication_seconds * total * LOG2[count] + link_seconds * total * RING[count]
    return total / (1.0 + max(0.0, ratio - hidden_ratio))


def balanced_rate(devices: Iterable[tuple[float, float]]) -> float:
    """Rate of a set whose shares follow the speeds.

    Args:
        devices: Each one's own rate and its communication seconds.
    """
    found = list(devices)
    total = math.fsum(rate for rate, _ in found)
    slowest = max((seconds for _, seconds in found), default=0.0)
    return rate_of(total, slowest, len(found), is_mixed=len(set(found)) > 1)


def uniform_rate(devices: Iterable[tuple[float, float]]) -> float:
    """Rate of a set with equal shares: all wait for the slowest, as without a balancer.

    Args:
        devices: As for `balanced_rate`.
    """
    found = list(devices)
    slowest = min((rate for rate, _ in found), default=0.0)
    communication = max((seconds for _, seconds in found), default=0.0)
    return rate_of(slowest * len(found), communication, len(found), is_mixed=False)
