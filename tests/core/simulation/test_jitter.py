"""The noise of step times: what it promises about its mean and variation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_hvd.core.simulation.jitter import Jitter


@given(noise=st.floats(0, 0.5), spikes=st.floats(0, 0.2), ratio=st.floats(1, 5))
@settings(max_examples=30)
def test_the_mean_is_the_one_that_is_told(noise, spikes, ratio):
    """The mean of many factors is `mean`, within five standard errors and one rare spike."""
    jitter = Jitter(noise_ratio=noise, spike_probability=spikes, spike_ratio=ratio)
    factors = jitter.factors(np.random.default_rng(0), 20_000)
    error = factors.std() / np.sqrt(len(factors))
    rare = (ratio - 1) * (spikes + 5 * np.sqrt(spikes / len(factors)))  # none may have come
    assert abs(factors.mean() - jitter.mean) <= 5 * error + rare + 1e-12


def test_variation_and_spikes_are_as_asked_for():
    """The coefficient of variation, and the share of steps that are three times as long."""
    random = np.random.default_rng(1)
    factors = Jitter(noise_ratio=0.2).factors(random, 50_000)
    assert factors.std() / factors.mean() == pytest.approx(0.2, rel=0.02)
    factors = Jitter(spike_probability=0.02).factors(random, 50_000)
    assert set(factors.tolist()) == {1.0, 3.0}
    assert (factors == 3.0).mean() == pytest.approx(0.02, rel=0.1)
