"""Fixed point for sums whose bits do not depend on their order: which scale, and when it is wrong.

Integers add up to the same whatever the order and the grouping; floats do not. A value x becomes
round(x * 2^s). The scale 2^s follows from the largest values of earlier steps, an exact maximum
over all grains, so it is the same for every division of the work. It leaves room for growth; a step
whose values outgrow the room, or are too small for the scale, is taken again with the scale that
its own maximum asks for. So no sum that is used ever overflowed, and none is coarser than
`worst_error` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

UNUSED = -(2**20)
"""Exponent of a tensor to which nothing was added."""

ZERO = UNUSED + 1
"""Exponent of a tensor to which nothing but zeros was added."""

NON_FINITE = 2**20
"""Exponent of a tensor to which an infinity or NaN was added."""

SMALLEST = -60
"""Below 2^-60 values share one scale: 2^s must stay a float32."""


@dataclass(frozen=True)
class FixedPoint:
    """How float32 values are turned into integers of a width.

    Attributes:
        bits: Width of the sums, 32 or 64.
        headroom: Doublings by which a maximum may grow before a step is taken again.
        slack: Halvings by which it may fall.
    """

    bits: int
    headroom: int
    slack: int

    def scale_exponent(self, assumed: int, num_grains: int) -> int:
        """The s of the scale 2^s.

        With |x| < 2^(assumed + headroom), each integer is at most 2^(bits-2) / num_grains, and the
        sum of all, rounding included, is below 2^(bits-1).

        Args:
            assumed: Exponent that the values are assumed to have: |x| < 2^assumed.
            num_grains: Values in a sum at most, > 0.
        """
        return self.bits - 2 - (num_grains - 1).bit_length() - self.headroom - assumed

    def is_wrong(self, assumed: int, observed: int) -> bool:
        """Whether a step has to be taken again with another scale."""
        if observed in (UNUSED, ZERO, NON_FINITE):
            return False
        return not assumed - self.slack <= max(observed, SMALLEST) <= assumed + self.headroom

    def next_assumed(self, assumed: int, observed: int) -> int:
        """The exponent for the step after one with this maximum: falls by one halving a step."""
        if observed in (UNUSED, ZERO, NON_FINITE):
            return assumed
        return max(observed, assumed - 1, SMALLEST)

    def worst_error(self, observed: int, num_grains: int) -> float:
        """Bound on |sum of the integers / 2^s - exact sum|: half a unit for each grain.

        Args:
            observed: Exponent of the largest value, >= `SMALLEST`.
            num_grains: Values in the sum.
        """
        coarsest = self.scale_exponent(observed + self.slack, num_grains)
        return math.ldexp(num_grains, -coarsest - 1)


WIDE = FixedPoint(bits=64, headroom=10, slack=8)
"""Sums that are exact but for values far below the tensor's largest; 8 bytes for each element."""

NARROW = FixedPoint(bits=32, headroom=2, slack=2)
"""As many bytes as float32 has, and an error like that of float32 sums; see `MAX_NARROW_GRAINS`."""

MAX_NARROW_GRAINS = 64
"""More grains would leave fewer than 20 bits below the largest value."""


def exponent_of(maximum: float) -> int:
    """The smallest e with maximum < 2^e; `ZERO` for 0, `NON_FINITE` for infinity and NaN."""
    if maximum == 0:
        return ZERO
    return math.frexp(maximum)[1] if math.isfinite(maximum) else NON_FINITE
