"""Cycles are found to 2 %, and nothing is called a cycle that is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetero_hvd.core.patterns.period import MIN_SAMPLES, find_period

NUM_SAMPLES = 240
"""A minute, four times a second."""


def busy(rng, period, duty, *, jitter=0.0, noise=0.05, number=NUM_SAMPLES):
    """Use of a device that works for a part of each cycle, as a mean over each interval."""
    fine = np.zeros(number * 20)
    at = -period * rng.random()
    while at < number:
        length = period * (1 + jitter * rng.standard_normal())
        fine[max(0, int(20 * at)) : max(0, int(20 * (at + duty * length)))] = 1.0
        at += length
    return fine.reshape(number, 20).mean(1) + noise * rng.standard_normal(number)


@pytest.mark.parametrize("duty", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("period", [2.3, 3.3, 5.0, 9.0, 17.0])
def test_a_cycle_is_found_to_two_percent(period, duty):
    """Whatever part of it is busy: in at least 95 of 100 minutes."""
    rng = np.random.default_rng(int(100 * period + 10 * duty))
    found = [find_period(busy(rng, period, duty), 0.25) for _ in range(40)]
    right = [each for each in found if each and abs(each.seconds / (0.25 * period) - 1) <= 0.02]
    assert len(right) >= 38
    assert all(each.num_cycles == pytest.approx(60 / each.seconds) for each in right)


def walk(rng, number):
    """Each value is the one before and a step."""
    return np.cumsum(rng.standard_normal(number))


def remembering(rng, number, correlation):
    """Noise in which each value remembers the one before."""
    found = np.zeros(number)
    for index in range(1, number):
        found[index] = correlation * found[index - 1] + rng.standard_normal()
    return found


NOISE = {
    "white noise": lambda rng, n: rng.standard_normal(n),
    "a random walk": walk,
    "noise that remembers a little": lambda rng, n: remembering(rng, n, 0.5),
    "noise that remembers much": lambda rng, n: remembering(rng, n, 0.9),
    "an idle machine": lambda rng, n: np.where(rng.random(n) < 0.1, 5 * rng.random(n), 0.0),
    "bursts": lambda rng, n: np.convolve(rng.random(n) < 0.05, np.ones(4), "same"),
    "a job that begins": lambda rng, n: (np.arange(n) > n / 3) + 0.02 * rng.standard_normal(n),
    "memory that grows": lambda rng, n: np.arange(n) + rng.standard_normal(n),
}


@pytest.mark.parametrize("number", [60, NUM_SAMPLES])
@pytest.mark.parametrize("name", NOISE)
def test_what_is_no_cycle_is_not_called_one(name, number):
    """In at most 5 of 100."""
    rng = np.random.default_rng(number)
    found = [find_period(NOISE[name](rng, number), 1.0) for _ in range(100)]
    assert sum(each is not None for each in found) <= 5


NOTHING = {
    "nothing": [],
    "too few": [0.0, 1.0] * (MIN_SAMPLES // 2 - 1),
    "constant": [3.0] * NUM_SAMPLES,
    "not told": [math.nan] * NUM_SAMPLES,
    "infinite": [math.inf] * NUM_SAMPLES,
    "mostly missing": [0.0, 0.0, 1.0, math.nan] * (NUM_SAMPLES // 4),
    "a line": list(range(NUM_SAMPLES)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_too_little_tells_nothing(name):
    """Nor does it fail."""
    assert find_period(NOTHING[name], 1.0) is None


def test_gaps_do_not_hide_a_cycle():
    """One of ten samples is missing."""
    rng = np.random.default_rng(1)
    values = busy(rng, 6.0, 0.5)
    values[rng.random(NUM_SAMPLES) < 0.1] = math.nan
    assert find_period(values, 0.5).seconds == pytest.approx(3.0, rel=0.02)


def test_a_correlation_is_at_most_one():
    """Even of a series of which each part that overlaps varies more than the whole."""
    assert find_period(np.tile([0.0, 1.0], 30), 1.0).correlation == 1.0
