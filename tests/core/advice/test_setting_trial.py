"""Which settings are tried, in which order, and what is said of them."""

from __future__ import annotations

import random

import pytest

from hetero_hvd.core.advice.setting_trial import AS_IT_IS, MAX_ROUNDS, SETTINGS, SettingTrial


def tried(true, *, refused=(), seed=0):
    """Order and lines, where each does so many times what the job does as it is."""
    generator = random.Random(seed)  # noqa: S311 - noise
    trial, order = SettingTrial(tuple(SETTINGS)), []
    for number, name in trial.due():
        order.append((number, name))
        if name in refused:
            trial.refused(name, "no")
        else:
            speed = 500 * true.get(name, 1.0) * (1 + 0.1 * number) * generator.gauss(1, 0.002)
            trial.measured(number, name, speed)
    return order, {line.partition("  ")[0].strip(): line for line in trial.in_words()}


def test_all_are_compared_with_the_job_as_it_is_until_that_is_certain():
    """In rounds that go to and fro; whoever is told apart is not measured again."""
    order, said = tried({"batch x2": 1.5, "staleness 2": 0.7})
    first, *_ = (name for number, name in order if number == 0)
    *_, last = (name for number, name in order if number == 1)
    assert first == last == AS_IT_IS
    assert set(said) == {AS_IT_IS, *(name for group in SETTINGS.values() for name in group)}
    assert said["batch x2"].endswith("%")
    assert "+" in said["batch x2"]
    assert "-" in said["staleness 2"]
    assert said["compression fp16"].endswith("not told apart from the job as it is")
    assert (MAX_ROUNDS - 1, "batch x2") not in order
    assert (MAX_ROUNDS - 1, "compression fp16") in order


@pytest.mark.parametrize("refused", ["staleness 2", AS_IT_IS])
def test_what_cannot_be_is_told_and_not_tried_again(refused):
    """Without the job as it is there is nothing to compare with."""
    order, said = tried({}, refused=[refused])
    assert sum(name == refused for _, name in order) == 1
    assert len(order) == 1 or refused != AS_IT_IS
    assert said[refused].endswith("not measured  no")
