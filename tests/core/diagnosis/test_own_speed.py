"""What a worker is judged by is the best that it has shown, not what a curve promises."""

import numpy as np
import pytest

from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.core.diagnosis.own_speed import SpeedBaseline


def taught(curve, shares):
    """An estimator that has seen steps of these shares; noise of 2 %."""
    chance = np.random.default_rng(0)
    estimator = StepTimeEstimator()
    for share in shares:
        estimator.update(share, curve.step_seconds(share) * chance.lognormal(0, 0.02))
    return estimator


@pytest.mark.parametrize("share", [10, 20, 28])
def test_a_curve_that_promises_more_than_is_measured_is_not_believed(share):
    """It is better known than the best so far, and wrong, as after some steps of another speed."""
    true = StepTimeModel(overhead_seconds=0.003, seconds_per_sample=0.001)
    wrong = StepTimeModel(overhead_seconds=0.0001, seconds_per_sample=0.0006)
    baseline = SpeedBaseline()
    baseline.recall(taught(true, [40] * 4), 40)
    expected = baseline.expected_seconds(share)
    better_known = taught(wrong, [40, 10, 20] * 20)
    baseline.learn(better_known, share, busy_seconds=true.step_seconds(share), speed_ratio=1.0)
    assert baseline.expected_seconds(share) == expected
