"""Figures without digits that say nothing: fewer bytes once they are stored."""

from __future__ import annotations

import math

BITS = 17
"""Of a mean rate: one part in 130,000. The time that it is divided by is not known any better."""


def significant(value: float, bits: int = BITS) -> float:
    """The nearest number with so many significant binary digits; what is none stays as it is."""
    if not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    scale = 2.0**bits
    try:
        return math.ldexp(round(mantissa * scale) / scale, exponent)
    except OverflowError:  # it is among the largest that there are
        return value


def ratio_in_words(ratio: float) -> str:
    """Two digits behind the point, and of less than a tenth the first that is not 0."""
    return f"{ratio:.2f}" if not abs(ratio) < 0.1 else f"{ratio:.1g}"  # noqa: PLR2004
