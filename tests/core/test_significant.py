"""Digits that say nothing are left out, and nothing else."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.significant import BITS, ratio_in_words, significant


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_figure_stays_what_it_is(value):
    """Within one part in 130,000; rounding it again changes nothing."""
    found = significant(value)
    if abs(value) > 1e-300 and abs(value) < 1e300:
        assert found == pytest.approx(value, rel=2.0**-BITS)
        assert significant(found) == found
        (bits,) = struct.unpack("<Q", struct.pack("<d", found))
        assert bits % 2 ** (52 - BITS) == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, -0.0, 1.0, 350.5])
def test_what_has_few_digits_has_them_afterwards(value):
    """Equal, and what is no number stays none."""
    assert significant(value) == value
    assert math.isnan(significant(math.nan))


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.0, "1.00"), (0.456, "0.46"), (0.1, "0.10"), (0.05, "0.05"), (0.0034, "0.003"), (0.0, "0")],
)
def test_a_small_ratio_is_not_told_as_none(ratio, words):
    """A worker that is 300 times slower does something."""
    assert ratio_in_words(ratio) == words
