"""How far two machines' clocks are apart, from questions and answers that carry their times.

The four time stamps of NTP (RFC 5905, section 8): the asker's clock at question and answer, the
other's at receipt and reply. Whatever the delays of the two ways, the offset is off by half the
round trip at most, so the fastest of some exchanges bounds it best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """A clock against ours.

    Attributes:
        seconds: What it shows more than ours; negative: it is behind.
        uncertainty_seconds: The true offset is within this of it, >= 0.
    """

    seconds: float
    uncertainty_seconds: float

    @property
    def least_seconds(self) -> float:
        """How far it is off at least, either way."""
        return max(0.0, abs(self.seconds) - self.uncertainty_seconds)


def offset_of(
    *, asked_at: float, received_at: float, replied_at: float, heard_at: float
) -> ClockOffset:
    """One exchange's offset.

    Args:
        asked_at: Our clock at the question, seconds.
        received_at: The other's clock when it came.
        replied_at: The other's clock when it answered, >= `received_at`.
        heard_at: Our clock at the answer, >= `asked_at`.
    """
    round_trip = max(0.0, (heard_at - asked_at) - (replied_at - received_at))
    return ClockOffset(
        seconds=((received_at - asked_at) + (replied_at - heard_at)) / 2,
        uncertainty_seconds=round_trip / 2,
    )


def best(offsets: Iterable[ClockOffset]) -> ClockOffset:
    """The one that is known best.

    Raises:
        ValueError: There is none.
    """
    return min(offsets, key=lambda offset: offset.uncertainty_seconds)


def best_of_newest(offsets: Sequence[ClockOffset]) -> ClockOffset:
    """The one that is known best of the newest ones that can all be true.

    Where a clock has jumped, or has stood still with its machine, what was measured before that
    contradicts what was measured since.

    Args:
        offsets: The oldest first.

    Raises:
        ValueError: There is none.
    """
    lowest, highest = -math.inf, math.inf
    agreeing = []
    for offset in reversed(offsets):
        lowest = max(lowest, offset.seconds - offset.uncertainty_seconds)
        highest = min(highest, offset.seconds + offset.uncertainty_seconds)
        if lowest > highest:
            break
        agreeing.append(offset)
    return best(agreeing)
