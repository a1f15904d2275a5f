"""Would it have been cheaper otherwise? Answers stand on what was measured, or are not given."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.cost.placement import ShareTime
from hetero_hvd.core.cost.what_if import break_even, without
from hetero_hvd.messages import WorkerId, WorkersJoined

ALPHA, GAMMA = WorkerId("alpha", 0), WorkerId("gamma", 0)
JOINED = WorkersJoined(
    rendezvous_id=1,
    workers=(ALPHA, GAMMA),
    applied_steps=0,
    global_batch_size=100,
    capacities=(-1, -1),
    prefetch_steps=0,
)


def times(overhead, per_sample, *shares):
    """What a worker needs for its shares."""
    return [
        ShareTime(share=s, busy_seconds=overhead + per_sample * s, num_steps=10) for s in shares
    ]


FAST = times(0.0, 0.001, 40, 80)
SLOW = times(0.01, 0.009, 5, 20)
PRICES = {"alpha": 1.0, "gamma": 1.0}


def test_a_slow_node_at_the_same_price_is_dear():
    """Alpha alone takes 100 ms for half the money; both together take about 91 ms."""
    answer = without("gamma", JOINED, {ALPHA: FAST, GAMMA: SLOW}, PRICES, 0.0)
    assert not answer.problem
    assert answer.samples_per_second_without == pytest.approx(1000.0)
    assert answer.cost_per_million_without == pytest.approx(1.0 / 3600 * 1e6 / 1000.0)
    assert answer.cost_per_million == pytest.approx(2.0 / 3600 * 1e6 / answer.samples_per_second)
    assert 1000.0 < answer.samples_per_second < 1200.0
    assert "cheaper per sample" in answer.words
    assert "slower" in answer.words


def test_a_slow_node_that_is_free_is_none():
    """The speed that it adds costs nothing."""
    prices = PRICES | {"gamma": 0.0}
    answer = without("gamma", JOINED, {ALPHA: FAST, GAMMA: SLOW}, prices, 0.0)
    assert "dearer per sample" in answer.words


def test_reduction_costs_those_who_are_several():
    """One worker alone reduces with nobody, so it may even be faster."""
    answer = without("gamma", JOINED, {ALPHA: FAST, GAMMA: SLOW}, PRICES, 0.05)
    assert answer.samples_per_second_without == pytest.approx(1000.0)
    assert "faster" in answer.words


def test_what_costs_nothing_with_and_without_a_node_is_as_dear():
    """There is no part of nothing."""
    answer = without("gamma", JOINED, {ALPHA: FAST, GAMMA: SLOW}, dict.fromkeys(PRICES, 0.0), 0.0)
    assert "without gamma: as dear and " in answer.words


def test_a_time_that_seems_not_to_depend_on_the_share_is_not_believed_of_far_larger_ones():
    """Gamma had less than a half of the batch: for all of it it takes more than twice as long."""
    measured = {ALPHA: times(0.0, 0.001, 60), GAMMA: times(0.06, 1e-6, 20, 40)}
    answer = without("alpha", JOINED, measured, PRICES, 0.0)
    assert answer.samples_per_second_without == pytest.approx(40 / 0.06, rel=0.01)
    assert "dearer per sample and 60% slower" in answer.words


def test_the_inputs_are_shown():
    """Curves with the shares that they were measured at, prices, batch and reduction."""
    measured = {ALPHA: times(0.0, 0.001, 80), GAMMA: SLOW}
    text = "\n".join(without("gamma", JOINED, measured, PRICES, math.nan).inputs)
    assert "alpha:0: 0.00 ms + 1.0000 ms per sample, measured at shares of 80 alone" in text
    assert (
        "gamma:0: 10.00 ms + 9.0000 ms per sample, measured at shares of 5 to 20; above 30" in text
    )
    assert "alpha 1 and gamma 1" in text
    assert "not measured: taken as none" in text


LIMITED = WorkersJoined(
    rendezvous_id=1,
    workers=(ALPHA, GAMMA),
    applied_steps=0,
    global_batch_size=100,
    capacities=(0, -1),
    prefetch_steps=0,
)


@pytest.mark.parametrize(
    ("node", "joined", "measured", "prices", "problem"),
    [
        ("delta", JOINED, {ALPHA: FAST, GAMMA: SLOW}, PRICES, "not in the newest membership"),
        ("gamma", JOINED, {GAMMA: SLOW}, PRICES, "no speed was measured of alpha:0"),
        ("gamma", JOINED, {ALPHA: FAST, GAMMA: SLOW}, {"gamma": 1.0}, "alpha: no price_per_hour"),
        ("gamma", LIMITED, {ALPHA: FAST, GAMMA: SLOW}, PRICES, "cannot hold the global batch"),
    ],
)
def test_without_evidence_there_is_no_answer(node, joined, measured, prices, problem):
    """It says what is missing."""
    answer = without(node, joined, measured, prices, 0.0)
    assert problem in answer.words
    assert "cannot be told" in answer.words


@pytest.mark.parametrize(
    ("rent", "power_price", "watts", "words"),
    [
        (1.0, None, math.nan, "cheaper after 1000 hours of training (41.7 days)"),
        (1.0, 0.5, 1000.0, "cheaper after 2000 hours"),
        (0.5, 0.5, 1000.0, "never pays"),
        (None, 0.5, 1000.0, "no price_per_hour"),
        (1.0, 0.5, math.nan, "no energy of it was measured"),
    ],
)
def test_break_even(rent, power_price, watts, words):
    """Purchase against rent and power, or what is missing."""
    answer = break_even("alpha", 1000.0, rent, power_price, watts)
    assert words in answer.words
    assert answer.problem or any("rent" in given for given in answer.inputs)
