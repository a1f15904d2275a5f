"""Laws of the fixed point, on exact numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.numerics.fixed_point import (
    NARROW,
    NON_FINITE,
    SMALLEST,
    UNUSED,
    WIDE,
    ZERO,
    exponent_of,
)

VALUES = st.lists(
    st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False), min_size=1, max_size=64
)
KINDS = pytest.mark.parametrize("kind", [WIDE, NARROW], ids=["64", "32"])


def assumptions(kind, values):
    """The exponents under which these values are not taken again, from low to high."""
    observed = exponent_of(max(map(abs, values)))
    if observed == ZERO:
        return [0]
    clamped = max(observed, SMALLEST)
    found = [e for e in range(clamped - 20, clamped + 20) if not kind.is_wrong(e, observed)]
    assert found == list(range(clamped - kind.headroom, clamped + kind.slack + 1))
    return [found[0], found[-1]]


@KINDS
@given(values=VALUES, data=st.data())
def test_no_sum_that_is_used_overflows(kind, values, data):
    """Whatever part of the values is added up, in whatever order, it fits into the integer."""
    for assumed in assumptions(kind, values):
        scale = kind.scale_exponent(assumed, len(values))
        integers = [round(Fraction(x) * Fraction(2) ** scale) for x in values]
        sign = data.draw(st.sampled_from((1, -1)))
        assert sum(max(0, sign * n) for n in integers) < 2 ** (kind.bits - 1)


@KINDS
@given(values=VALUES)
def test_the_error_is_within_its_bound(kind, values):
    """It is at most half a unit for each value."""
    exact = sum(map(Fraction, values))
    observed = max(SMALLEST, exponent_of(max(map(abs, values))))
    for assumed in assumptions(kind, values):
        scale = Fraction(2) ** kind.scale_exponent(assumed, len(values))
        found = sum(round(Fraction(x) * scale) for x in values) / scale
        assert abs(found - exact) <= kind.worst_error(observed, len(values))


@given(values=VALUES)
def test_sums_are_within_one_ulp_of_float32(values):
    """64-bit sums that are not below 2^-11 of the largest value, for up to 16 grains."""
    values = values[:16]
    exact = sum(map(Fraction, values))
    largest = max(map(abs, values))
    if largest < 2.0**SMALLEST or abs(exact) < largest * Fraction(1, 2**11):
        return
    ulp = Fraction(2) ** (math.frexp(float(abs(exact)))[1] - 24)
    for assumed in assumptions(WIDE, values):
        scale = Fraction(2) ** WIDE.scale_exponent(assumed, len(values))
        found = sum(round(Fraction(x) * scale) for x in values) / scale
        assert abs(found - exact) <= ulp / 2  # the other half is for the conversion to float32


@KINDS
@given(
    assumed=st.integers(SMALLEST, 128),
    num_grains=st.integers(1, 10**6),
)
def test_scales_are_floats(kind, assumed, num_grains):
    """The scale and what it makes of the largest value are representable in float32."""
    scale = kind.scale_exponent(assumed, num_grains)
    assert -126 <= scale <= 126
    assert assumed + kind.headroom + scale <= 126


@KINDS
@given(assumed=st.integers(SMALLEST, 128), observed=st.integers(-148, 128))
def test_a_step_is_taken_again_once(kind, assumed, observed):
    """With the exponent that its own maximum asks for, it is right; and so is the one after."""
    right = max(observed, SMALLEST)
    assert not kind.is_wrong(right, observed)
    following = kind.next_assumed(assumed, observed)
    assert right <= following <= max(right, assumed)


def test_tensors_without_values_change_nothing():
    """Zero and non-finite values say nothing about the next step."""
    assert exponent_of(0.0) == ZERO
    assert exponent_of(math.inf) == exponent_of(math.nan) == NON_FINITE
    assert exponent_of(1.0) == 1
    assert exponent_of(0.75) == 0
    for observed in (UNUSED, ZERO, NON_FINITE):
        assert not WIDE.is_wrong(3, observed)
        assert WIDE.next_assumed(3, observed) == 3
