"""How fast a job is on a set of unlike devices, predicted.

The step of a data-parallel job takes as long as its devices compute, which our balancer lets them
do for equally long, and as they communicate: a unit of work takes 1 / sum of rates + c log2(n)
seconds on n devices. Gavel's published rates on 1, 2, 4 and 8 equal devices (Narayanan et al., OSDI
2020) are nearest to a cost that grows with the logarithm: the tree of a reduction. A set is as slow
to communicate as its slowest link. Where links were measured, c is that measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

BALANCED_RATIO = 0.95
"""What shares that follow the speeds reach of the sum of unlike devices' rates; we measured 0.95 to
0.99 (docs/benchmarks.md)."""

LOG2 = (0.0, 0.0, *(math.log2(n) for n in range(2, 4097)))
"""Doublings up to n devices; taking the logarithm anew costs more than all else here."""


def rate_of(total: float, communication_seconds: float, count: int, *, is_mixed: bool) -> float:
    """Units of work per second.

    Args:
        total: Sum of the devices' own rates, units of work per second, >= 0.
        communication_seconds: Of the slowest link, per unit of work and doubling, >= 0.
        count: Number of devices, >= 0.
        is_mixed: Whether they are of several kinds.
    """
    if not total:
        return 0.0
    if is_mixed:
        total *= BALANCED_RATIO
    return total / (1.0 + communication_seconds * total * LOG2[count])


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
