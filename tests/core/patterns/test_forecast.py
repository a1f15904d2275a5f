"""Forecasts are told where they are better than the last value, with intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import theilslopes

from hetero_hvd.core.patterns.forecast import find_forecast, theil_sen

AT = np.arange(3600.0)


def growing(rng, per_second=1e-3, sigma=0.05):
    """Memory with a leak."""
    return 5.0 + per_second * AT + sigma * rng.standard_normal(len(AT))


def test_the_slope_is_that_of_scipy():
    """Of whatever series."""
    rng = np.random.default_rng(0)
    for number in (2, 3, 17, 60):
        values = np.cumsum(rng.standard_normal(number))
        assert theil_sen(values) == pytest.approx(theilslopes(values)[0])


def test_what_grows_is_told_when_it_is_full():
    """With an interval that holds the truth, in most of many."""
    rng, right = np.random.default_rng(1), 0
    for _ in range(20):
        rate = rng.uniform(0.5e-3, 2e-3)
        found = find_forecast(AT, growing(rng, rate), 450.0)
        assert found.method == "trend"
        early, expected, late = found.seconds_until(20.0)
        truth = (20.0 - 5.0) / rate - 3600
        assert expected == pytest.approx(truth, rel=0.1)
        right += early <= truth <= late
    assert right >= 13


def test_a_season_is_told():
    """Where its length is known, or is that of a day."""
    rng = np.random.default_rng(2)
    values = np.sin(2 * np.pi * AT / 600) + 0.1 * rng.standard_normal(len(AT))
    found = find_forecast(AT, values, 300.0, season_seconds=600.0)
    assert (found.method, found.seconds_until(5.0)) == ("season", None)
    assert found.middle == pytest.approx(np.sin(2 * np.pi * found.at_seconds / 600), abs=0.3)
    days = np.arange(0, 5 * 86400, 300.0)
    use = 0.5 + 0.4 * np.sin(2 * np.pi * days / 86400) + 0.02 * rng.standard_normal(len(days))
    assert find_forecast(days, use, 6 * 3600.0).method == "season"


NAIVE = {
    "white noise": lambda rng: rng.standard_normal(len(AT)),
    "a random walk": lambda rng: np.cumsum(rng.standard_normal(len(AT))),
    "constant": lambda _: np.full(len(AT), 3.0),
    "steps": lambda _: np.floor(AT / 600),
    "a sawtooth": lambda rng: AT % rng.uniform(500, 1500),
    "few samples": lambda rng: np.where(AT % 100, np.nan, growing(rng)),
    "not told": lambda _: np.full(len(AT), np.nan),
    "mostly gaps": lambda rng: np.where(AT // 60 % 3, np.nan, growing(rng)),
}


@pytest.mark.parametrize("name", NAIVE)
def test_what_is_not_better_than_the_last_value_is_not_told(name):
    """In at most 1 of 10."""
    rng = np.random.default_rng(3)
    found = [find_forecast(AT, NAIVE[name](rng), 450.0) for _ in range(10)]
    assert sum(each is not None for each in found) <= 1


@pytest.mark.parametrize("times", [[], [1.0], [2.0] * 100])
def test_no_time_has_no_forecast(times):
    """Nor does it fail."""
    assert find_forecast(np.array(times), np.arange(float(len(times))), 1.0) is None


@pytest.mark.parametrize(("limit", "is_told"), [(100.0, True), (-5.0, False)])
def test_a_limit_on_the_other_side_is_never_reached(limit, is_told):
    """Memory that grows is never empty."""
    found = find_forecast(AT, growing(np.random.default_rng(4)), 450.0)
    assert (found.seconds_until(limit) is not None) == is_told
