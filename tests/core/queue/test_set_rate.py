"""The predicted rate of a set of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.queue.set_rate import BALANCED_RATIO, balanced_rate, uniform_rate

devices = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=16)


def test_rates_add_up_and_communication_costs_by_doublings():
    """Four equal devices: two doublings."""
    assert balanced_rate([(2.0, 0.0)] * 4) == 8.0
    assert balanced_rate([(2.0, 0.05)] * 4) == pytest.approx(8.0 / (1 + 0.05 * 8.0 * 2))
    assert balanced_rate([(3.0, 0.0), (1.0, 0.0)]) == pytest.approx(4.0 * BALANCED_RATIO)
    assert uniform_rate([(3.0, 0.0), (1.0, 0.0)]) == 2.0
    assert balanced_rate([]) == uniform_rate([]) == 0.0


@given(devices)
def test_no_set_is_faster_than_its_sum(found):
    """And with equal shares no faster than its slowest allows."""
    total = sum(rate for rate, _ in found)
    assert 0 < balanced_rate(found) <= total * (1 + 1e-12)
    assert uniform_rate(found) <= len(found) * min(rate for rate, _ in found) * (1 + 1e-12)
