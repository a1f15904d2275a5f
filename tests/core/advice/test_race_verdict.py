"""What becomes of one of several after a round, by values that are equal, few or far apart."""

from __future__ import annotations

import pytest

from hetero_hvd.core.advice.race_verdict import AS_GOOD, verdict_of


def rounds_of(*values):
    """A round each, of four exchanges."""
    return {number: [value] * 4 for number, value in enumerate(values)}


BEST = rounds_of(1000.0, 1000.0, 1000.0)
VERDICTS = {
    "equal": (rounds_of(1000.0, 1000.0, 1000.0), AS_GOOD, AS_GOOD),
    "certainly worse by what nobody would notice": (
        rounds_of(999.9, 999.9, 999.9),
        AS_GOOD,
        AS_GOOD,
    ),
    "certainly worse by less than counts": (rounds_of(980.0, 980.0, 980.0), AS_GOOD, AS_GOOD),
    "certainly worse": (
        rounds_of(960.0, 960.0, 960.0),
        "worse: 96.0% to 96.0% of the best",
        "worse: 96.0% to 96.0% of the best",
    ),
    "far behind": (
        rounds_of(500.0, 700.0),
        "worse: 59% of the best in 2 rounds",
        "worse: 59% of the best in 2 rounds",
    ),
    "in one round": (rounds_of(500.0), "", "not told apart: about 50% of the best"),
    "by rounds that contradict": (
        rounds_of(900.0, 1000.0, 1100.0),
        "",
        "not told apart: about 100% of the best",
    ),
}
"""What was measured; the verdict when more rounds follow, and after the last one."""


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_what_becomes_of_it(case):
    """It is worse where that is certain and counts; of one round nothing is known."""
    rounds, before_the_last, last = case
    for is_last, expected in ((False, before_the_last), (True, last)):
        said = verdict_of(rounds, BEST, error=0.05, is_last=is_last, may_leave=True)
        assert said == expected


def test_all_together_stay_however_far_behind():
    """They are what the others are compared with."""
    rounds = rounds_of(500.0, 700.0)
    assert not verdict_of(rounds, BEST, error=0.05, is_last=False, may_leave=False)
