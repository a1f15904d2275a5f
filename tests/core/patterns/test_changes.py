"""Changes of level and idle phases: those that are there, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_hvd.core.patterns.changes import find_changes, idle_phases

AT = np.arange(3600.0)


def remembering(rng, correlation):
    """Noise in which each value remembers the one before."""
    found = np.zeros(len(AT))
    for index in range(1, len(AT)):
        found[index] = correlation * found[index - 1] + rng.standard_normal()
    return found


STEADY = {
    "white noise": lambda rng: rng.standard_normal(len(AT)),
    "noise that remembers a little": lambda rng: remembering(rng, 0.5),
    "noise that remembers much": lambda rng: remembering(rng, 0.97),
    "short cycles": lambda rng: ((AT % 7) < 3) + 0.05 * rng.standard_normal(len(AT)),
    "long cycles": lambda rng: ((AT % 37) < 13) + 0.05 * rng.standard_normal(len(AT)),
    "constant": lambda rng: np.full(len(AT), rng.random()),
    "not told": lambda _: np.full(len(AT), np.nan),
}


@pytest.mark.parametrize("name", STEADY)
def test_what_does_not_change_has_no_changes(name):
    """In at most 1 of 10."""
    rng = np.random.default_rng(5)
    assert sum(bool(find_changes(AT, STEADY[name](rng))) for _ in range(10)) <= 1


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_a_change_is_found_where_it_is(noise, gaps):
    """With its levels, also where samples are missing."""
    rng = np.random.default_rng(7)
    values = np.where((AT >= 900) & (AT < 2400), 0.9, 0.3) + noise * rng.standard_normal(len(AT))
    values[rng.random(len(AT)) < gaps] = np.nan
    up, down = find_changes(AT, values)
    assert [up.at_seconds, down.at_seconds] == pytest.approx([900, 2400], abs=20)
    assert [up.before, up.after, down.after] == pytest.approx([0.3, 0.9, 0.3], abs=0.05)


@pytest.mark.parametrize("times", [[], [1.0], [2.0] * 100])
def test_no_time_has_no_changes(times):
    """Nor does it fail."""
    assert find_changes(np.array(times), np.ones(len(times))) == []


IDLE = {
    "all of it": (lambda use: use, [(0, 199)]),
    "none": (lambda use: use + 0.5, []),
    "twice": (lambda use: np.where((use >= 0) & (AT[:200] // 70 == 1), 0.9, use),
              [(0, 69), (140, 199)]),
    "too short": (lambda use: np.where(AT[:200] % 50 == 0, 0.9, use), []),
    "not known between": (lambda use: np.where(AT[:200] // 50 == 2, np.nan, use), [(0, 99)]),
}  # fmt: skip


@pytest.mark.parametrize("name", IDLE)
def test_idle_phases(name):
    """Long ones only, and none over what is not known."""
    make, expected = IDLE[name]
    found = idle_phases(
        AT[:200], make(np.zeros(200)), most=0.05, least_seconds=55.0, longest_step=2.5
    )
    assert [(phase.begin, phase.end) for phase in found] == expected


def test_a_gap_ends_an_idle_phase():
    """A machine that is silent for an hour may have worked."""
    times = np.concatenate([AT[:100], AT[:100] + 3600])
    found = idle_phases(times, np.zeros(200), most=0.05, least_seconds=60.0, longest_step=2.5)
    assert [phase.seconds for phase in found] == [99.0, 99.0]
