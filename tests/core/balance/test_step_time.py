"""The estimator learns a worker's curve from noisy rows and says when the worker has changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel

curves = st.builds(
    StepTimeModel,
    overhead_seconds=st.floats(0, 0.2),
    seconds_per_sample=st.floats(1e-4, 0.01),
)


def taught(curve, sizes, *, noise=0.0, seed=0):
    """An estimator that has seen the curve at these batch sizes, and the alarms it gave."""
    random = np.random.default_rng(seed)
    estimator, alarms = StepTimeEstimator(), []
    for size in sizes:
        ratio = estimator.update(size, curve.step_seconds(size) * random.lognormal(0.0, noise))
        if ratio is not None:
            alarms.append(ratio)
    return estimator, alarms


@given(curves)
def test_two_batch_sizes_reveal_the_curve(curve):
    """Without noise, overhead and slope follow from rows at two sizes."""
    estimator, _ = taught(curve, [64] * 5 + [128, 32] * 40)
    for size in (32, 64, 128, 256):
        predicted = estimator.model.step_seconds(size)
        assert predicted == pytest.approx(curve.step_seconds(size), rel=0.01)


@given(curves, st.lists(st.integers(1, 512), min_size=1, max_size=60), st.integers(0, 99))
def test_parameters_stay_physical(curve, sizes, seed):
    """Overhead >= 0, slope > 0 and a finite error, whatever noise comes in."""
    estimator, _ = taught(curve, sizes, noise=0.5, seed=seed)
    assert estimator.model.overhead_seconds >= 0
    assert estimator.model.seconds_per_sample > 0
    assert math.isfinite(estimator.standard_error_ratio(100))


@given(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 1e-300, 1e300, 1.7e308]))
def test_rows_that_are_no_measurement_are_ignored(busy):
    """Nor do rows without work change anything: no step takes so long, or so little."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    estimator, _ = taught(curve, [64] * 5)
    before = estimator.model
    assert estimator.update(64, busy) is None
    assert estimator.update(0, 0.5) is None
    assert estimator.update(64, 0.5, num_steps=0) is None
    assert estimator.model == before
    unready = StepTimeEstimator()
    unready.update(64, busy)
    assert not unready.is_ready


def test_one_spike_neither_alarms_nor_carries_the_model_away():
    """A step 20 times as long as usual moves the prediction by less than two noise widths."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    estimator, alarms = taught(curve, [64] * 60, noise=0.02)
    assert estimator.update(64, 20 * curve.step_seconds(64)) is None
    assert alarms == []
    predicted = estimator.model.step_seconds(64)
    assert predicted == pytest.approx(curve.step_seconds(64), rel=0.04)


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.25, 2.0, 4.0])
def test_a_change_of_speed_is_reported_within_four_rows(ratio):
    """At CV 2 % the alarm names the ratio within 5 %, and rescaling follows it."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    for seed in range(20):
        estimator, alarms = taught(curve, [64] * 60, noise=0.02, seed=seed)
        assert alarms == []
        random = np.random.default_rng(seed)
        rows = (curve.step_seconds(64) * ratio * random.lognormal(0, 0.02) for _ in range(4))
        found = next(filter(None, (estimator.update(64, row) for row in rows)), None)
        assert found is not None
        assert found == pytest.approx(ratio, rel=0.1)
        estimator.rescale(found)
        assert estimator.model.step_seconds(64) == pytest.approx(
            ratio * curve.step_seconds(64), rel=0.05
        )


BEFORE = {
    "at the beginning of a row": [],
    "within a row of ten steps": [0.1],
    "in the middle of one": [0.5],
    "in the last row of two that are slower by chance": [0.01, 0.01],
}
"""Which part of a change is in each of the rows before those that have all of it."""


@pytest.mark.parametrize("ratio", [0.25, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("begins", BEFORE)
def test_no_change_is_taken_for_a_part_of_it(begins, ratio):
    """It is accepted once, on a worker with 2 % of noise, and then its time is known to 10 %.

    With a level between before and after, the next share would look like one of another curve.
    """
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    before, after = curve.step_seconds(64), ratio * curve.step_seconds(64)
    for seed in range(200):
        estimator, _ = taught(curve, [64] * 60, noise=0.02, seed=seed)
        random = np.random.default_rng(seed)
        rows = [before + part * (after - before) for part in BEFORE[begins]] + [after] * 4
        num_accepted = 0
        for seconds in rows:
            found = estimator.update(64, seconds * random.lognormal(0, 0.02))
            if found is not None:
                num_accepted += 1
                estimator.rescale(found)
                assert estimator.model.step_seconds(64) == pytest.approx(after, rel=0.1)
        assert num_accepted == 1


AFTER = {
    "vary a little": lambda _n, random: 2 * random.lognormal(0, 0.1),
    "vary much": lambda _n, random: 3 * random.lognormal(0, 0.3),
    "have two levels in turn": lambda n, _random: 2 + n % 2,
    "have two levels far apart, in turn": lambda n, _random: 3 * (1 + n % 2),
    "have two levels in turn, far from before": lambda n, _random: 4 + 2 * (n % 2),
    "get longer and longer": lambda n, _random: 1.3 ** (n + 1),
    "take ten times as long, every other one": lambda n, _random: 2 if n % 2 else 10,
}
"""How many times as long the steps after a change take, by their number, where no two agree."""


@pytest.mark.parametrize("after", AFTER)
def test_a_change_to_steps_that_do_not_agree_is_accepted_soon(after):
    """Rows that agree may never come: after six at most the time is no longer that of before."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    for seed in range(200):
        estimator, _ = taught(curve, [64] * 60, noise=0.02, seed=seed)
        random = np.random.default_rng(seed)
        for n in range(6):
            seconds = AFTER[after](n, random) * curve.step_seconds(64) * random.lognormal(0, 0.02)
            found = estimator.update(64, seconds)
            if found is not None:
                estimator.rescale(found)
        assert estimator.model.step_seconds(64) > 1.5 * curve.step_seconds(64)


@pytest.mark.parametrize("spikes", [(2, 10), (3, 20), (1.5, 5)])
def test_spikes_that_are_over_leave_nothing_to_the_next_change(spikes):
    """Each of their rows was waited for; a change whose first row has a part of it is, too."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    for seed in range(40):
        estimator, _ = taught(curve, [64] * 60, noise=0.02, seed=seed)
        random = np.random.default_rng(seed)
        found = []
        for factor in [*spikes, *[1.0] * 60, *spikes, *[1.0] * 60, 1.3, *[4.0] * 5]:
            seconds = factor * curve.step_seconds(64) * random.lognormal(0, 0.02)
            found.append(estimator.update(64, seconds))
        told = [ratio for ratio in found if ratio is not None]
        assert told[:1] == pytest.approx([4.0], rel=0.1), seed


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_the_noise_is_learnt(noise):
    """Within a factor of 1.8 after 100 rows, on the average of 20 seeds."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    found = [taught(curve, [64] * 100, noise=noise, seed=s)[0].sigma_ratio for s in range(20)]
    assert noise / 1.8 < float(np.mean(found)) < noise * 1.8


def test_the_error_grows_away_from_the_data():
    """A prediction at ten times the batch is less certain than one at the measured batch."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    estimator, _ = taught(curve, [64] * 20, noise=0.02)
    near, far = estimator.standard_error_ratio(64), estimator.standard_error_ratio(640)
    assert near < 0.02 < far


RECALLED = {
    "one share was measured": (0, 0, False),
    "all were": (0, 1, True),
    "all were, in pieces": (4, 1, True),
    "whole pieces were, which tell nothing apart": (4, 4, False),
    "one was, and one close to it": (0, 15, False),
}
"""Micro-batch size, smallest share of up to 16 samples that was measured, and whether the time of a
single sample is known."""


@pytest.mark.parametrize("case", RECALLED)
def test_a_recalled_curve_is_known_where_it_was_measured(case):
    """To one row's noise; elsewhere how it splits is a guess."""
    micro_batch_size, smallest, is_known = RECALLED[case]
    model = StepTimeModel(
        overhead_seconds=0.1, seconds_per_sample=0.05, micro_batch_size=micro_batch_size
    )
    estimator = StepTimeEstimator(micro_batch_size)
    estimator.recall(model, 16, smallest)
    assert estimator.model == model
    assert estimator.standard_error_ratio(16) == pytest.approx(0.05, rel=0.2)
    assert (estimator.standard_error_ratio(1) < 0.06) == is_known


def test_a_copy_learns_alone():
    """A snapshot is not touched by what the original sees later."""
    curve = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.001)
    estimator, _ = taught(curve, [64] * 5)
    twin, before = estimator.copy(), estimator.model
    estimator.update(64, 1.0)
    estimator.update(64, 1.0)
    assert twin.model == before
    assert twin.update(64, curve.step_seconds(64)) is None
