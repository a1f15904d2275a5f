"""A long recording works in cycles if most of its windows do, and in the same ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetero_hvd.core.patterns.cycle import find_cycle

MINUTE = 240


def use(period, minutes, rng):
    """Use of half of each cycle; a period of 0 is idle."""
    at = np.arange(minutes * MINUTE)
    busy = (at % period) < period / 2 if period else np.zeros(len(at))
    return busy + 0.05 * rng.standard_normal(len(at))


COURSES = {
    "one cycle": ([(6, 5)], (1.5, 1.0)),
    "idle": ([(0, 5)], None),
    "a job of most of the time": ([(0, 2), (6, 4)], (1.5, 4 / 6)),
    "a job of some of the time": ([(0, 4), (6, 2)], None),
    "two jobs": ([(6, 4), (17, 2)], (1.5, 4 / 6)),
    "two jobs of the same length": ([(6, 3), (17, 3)], None),
    "less than a minute": ([(6, 0.4)], (1.5, 1.0)),
    "some samples": ([(6, 0.05)], None),
}
"""Samples in a cycle and minutes of each part; seconds of the cycle and part of the windows."""


@pytest.mark.parametrize("name", COURSES)
def test_most_windows_decide(name):
    """As jobs come and go."""
    parts, expected = COURSES[name]
    rng = np.random.default_rng(2)
    values = np.concatenate(
        [use(period, 1, rng)[: round(MINUTE * min(1, left - minute))]
         for period, left in parts for minute in range(math.ceil(left))]
    )  # fmt: skip
    times = 1e9 + 0.25 * np.arange(len(values)) + 0.01 * rng.standard_normal(len(values))
    found = find_cycle(times, values)
    if expected is None:
        assert found is None
    else:
        assert found.seconds == pytest.approx(expected[0], rel=0.02)
        assert found.window_ratio == pytest.approx(expected[1])


def test_what_is_missing_is_no_idle_time():
    """A machine that is silent for an hour says nothing of that hour."""
    rng = np.random.default_rng(3)
    values = use(6, 4, rng)
    times = 0.25 * np.arange(len(values))
    times[2 * MINUTE :] += 3600.0
    assert find_cycle(times, values).num_windows == 4


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 1.0]])
def test_no_time_has_no_cycle(times):
    """Nor does it fail."""
    assert find_cycle(np.array(times), np.ones(len(times))) is None


@pytest.mark.parametrize("seconds", [8.0, 13.0, 16.5, 19.0])
def test_long_cycles_are_found_in_longer_windows(seconds):
    """At one sample a second a minute has too few of them."""
    rng = np.random.default_rng(4)
    at = np.arange(900.0)
    values = (at % seconds < 0.4 * seconds) + 0.05 * rng.standard_normal(len(at))
    assert find_cycle(at, values).seconds == pytest.approx(seconds, rel=0.02)


def test_longer_windows_make_no_cycles():
    """Of noise that remembers, which is longer correlated than a minute."""
    rng, found = np.random.default_rng(6), 0
    for _ in range(20):
        found += find_cycle(np.arange(900.0), np.cumsum(rng.standard_normal(900))) is not None
    assert found <= 1
