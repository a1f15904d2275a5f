"""The benchmark of the advisor counts right and wrong ones as they are."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fleets.advisor import RecordedSteps, _periods, published_rule


def steps(truth, seconds=1.5):
    """A minute and a half of use in cycles, and how long its marks say that they are."""
    at = 0.25 * np.arange(360)
    use = (at % seconds < 0.4 * seconds).astype(float)
    return RecordedSteps(step_seconds=truth, own=use, use=use, memory_bytes=use, leaked_bytes=use)


@pytest.mark.parametrize(("truth", "is_reached"), [(1.5, True), (1.52, True), (1.6, False)])
def test_a_period_is_right_within_two_percent(truth, is_reached):
    """Of the marks."""
    (number,) = _periods([steps(truth)]).numbers
    assert number.is_reached is is_reached


def test_the_published_rule_is_that_of_its_authors():
    """It finds a clear cycle, and one in many random walks; a constant has none."""
    assert published_rule((np.arange(240) % 17 < 2).astype(float)) == pytest.approx(17, rel=0.1)
    assert published_rule(np.ones(60)) is None
    rng = np.random.default_rng(0)
    walks = [published_rule(np.cumsum(rng.standard_normal(240))) for _ in range(40)]
    assert sum(each is not None for each in walks) >= 8
