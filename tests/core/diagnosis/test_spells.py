"""What binds a run now and then is told from an accident and from noise."""

from __future__ import annotations

import pytest

from hetero_hvd.core.diagnosis.spells import Recurring, Spells

WELL, EVALUATION, SCRIPT = ("compute", 0.1), ("evaluation", 0.5), ("script", 0.5)
UNKNOWN, SHORT = (None, 0.5), ("evaluation", 0.11)
STEPS = 5
"""In an exchange."""

CASES = {
    "nothing": ([], None),
    "all is well": ([WELL] * 20, None),
    "an accident": ([*[WELL] * 9, EVALUATION, *[WELL] * 3], None),
    "an accident that lasts": ([*[WELL] * 9, *[EVALUATION] * 3, *[WELL] * 3], None),
    "the second one": ([*[WELL] * 5, EVALUATION, *[WELL] * 4, EVALUATION], ("evaluation", 5)),
    "between two of them": ([*[WELL] * 5, *[EVALUATION, *[WELL] * 4] * 3], ("evaluation", 5)),
    "it is late": ([*[WELL] * 5, *[EVALUATION, *[WELL] * 2] * 2, *[WELL] * 2], ("evaluation", 5)),
    "it is over": ([*[WELL] * 5, *[EVALUATION, *[WELL] * 2] * 2, *[WELL] * 5], None),
    "two accidents": ([*[WELL] * 5, EVALUATION, WELL, WELL, SCRIPT, WELL], None),
    "two in turn": ([*[WELL] * 5, *[EVALUATION, WELL, SCRIPT, WELL] * 2], ("script", 7)),
    "side by side": ([*[WELL] * 5, *[EVALUATION, SCRIPT, WELL, WELL] * 2], ("script", 6)),
    "within the noise": ([*[WELL] * 5, *[SHORT, WELL, WELL] * 3], None),
    "not measured": ([*[WELL] * 5, *[UNKNOWN, WELL, WELL] * 3], None),
    "too long ago": ([EVALUATION, *[WELL] * 19, EVALUATION], None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_comes_again(name):
    """Twice, for longer than the noise, by the same cause, and not late for the next time."""
    exchanges, expected = CASES[name]
    spells = Spells(20)
    for index, (kind, seconds) in enumerate(exchanges):
        spells.observe(STEPS * index, kind, seconds)
    if expected is not None:
        kind, first = expected
        expected = Recurring(kind, STEPS * first)
    assert spells.recurring(STEPS * len(exchanges) - 1) == expected


def test_other_shares_begin_anew():
    """What was seen before says nothing."""
    spells = Spells(20)
    for index, (kind, seconds) in enumerate([WELL, EVALUATION, WELL, EVALUATION]):
        spells.observe(index, kind, seconds)
    assert spells.recurring(3)
    spells.clear()
    assert spells.recurring(3) is None
