"""What is said of two things by values that vary: intervals hold the truth as often as they say."""

from __future__ import annotations

import math
import random

import pytest

from hetero_hvd.core.advice.race import UNKNOWN, error_of_a_pair, ratio_of, student

BOOK = {(0.975, 1): 12.706, (0.975, 2): 4.3027, (0.975, 5): 2.5706, (0.995, 3): 5.8409}
BOOK |= {(0.9, 1): 3.0777, (0.9, 4): 1.5332, (0.9995, 9): 4.7809, (0.75, 30): 0.68276}


@pytest.mark.parametrize(("what", "value"), BOOK.items())
def test_quantiles_are_those_of_the_tables(what, value):
    """Of small samples and of large ones."""
    assert student(*what) == pytest.approx(value, rel=3e-4)


@pytest.mark.parametrize("num_rounds", [2, 3, 6])
def test_an_interval_holds_the_truth_as_often_as_it_says(num_rounds):
    """Whatever drifts within the time of a round is the same for both."""
    generator = random.Random(num_rounds)  # noqa: S311 - no secret
    held = 0
    for _ in range(500):
        drift = [math.exp(generator.gauss(0, 0.3)) for _ in range(num_rounds)]
        ours = {i: 1.1 * d * math.exp(generator.gauss(0, 0.02)) for i, d in enumerate(drift)}
        others = {i: d * math.exp(generator.gauss(0, 0.02)) for i, d in enumerate(drift)}
        ratio = ratio_of(ours, others, error=0.2)
        assert ratio.low <= ratio.middle <= ratio.high
        held += ratio.low <= 1.1 <= ratio.high
    assert 370 <= held <= 430


@pytest.mark.parametrize(
    ("ours", "others", "middle"),
    [({}, {}, math.nan), ({1: 2.0}, {2: 1.0}, math.nan), ({1: 2.0, 3: 9.0}, {1: 1.0}, 2.0)],
)
def test_of_fewer_than_two_common_rounds_nothing_is_known(ours, others, middle):
    """But for what was seen once."""
    ratio = ratio_of(ours, others, error=0.2)
    assert (ratio.low, ratio.high) == (UNKNOWN.low, UNKNOWN.high)
    assert ratio.middle == pytest.approx(middle, nan_ok=True)


def test_values_without_any_noise_leave_no_width():
    """Nor does a difference of many orders overflow."""
    ratio = ratio_of({0: 1e100, 1: 1e120}, {0: 1e-100, 1: 1e-120}, error=0.01)
    assert ratio.high < math.inf
    assert ratio_of({0: 3.0, 1: 6.0}, {0: 1.0, 1: 2.0}, error=0.01).low == pytest.approx(3.0)
    assert error_of_a_pair(2, 6) == pytest.approx(0.05 / 10)
