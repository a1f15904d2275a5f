"""What users have had: decay, the entry of new ones, weights."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.queue.fair_share import FairShare


def test_use_is_forgotten_by_half_lives():
    """Half of it after one, a quarter after two; an earlier time adds nothing."""
    share = FairShare(100.0)
    share.charge({"ann": 2.0}, 10.0, 10.0)
    assert share.used("ann", 10.0) == 20.0
    assert share.used("ann", 110.0) == 10.0
    assert share.used("ann", 210.0) == 5.0
    assert share.used("ann", 0.0) == 20.0
    assert share.used("bob", 0.0) == 0.0


def test_who_comes_begins_at_the_mean():
    """A new name is no way to the front; whoever had more keeps it."""
    share = FairShare(1e12)
    share.enter(["ann"], 0.0)
    share.charge({"ann": 1.0}, 100.0, 100.0)
    share.enter(["ann", "bob"], 100.0)
    assert share.used("bob", 100.0) == pytest.approx(100.0)
    share.enter(["bob"], 100.0)
    share.charge({"bob": 1.0}, 50.0, 150.0)
    share.enter(["ann", "bob"], 150.0)
    assert share.used("ann", 150.0) == pytest.approx(150.0)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e9), min_size=1), st.floats(1, 1e6))
def test_who_has_had_less_weighs_more(used, tolerance):
    """By e for each tolerance; nobody's weight is 0 or infinite."""
    share = FairShare(1e12)
    share.charge(used, 1.0, 0.0)
    weights = share.weights(used, 0.0, tolerance)
    order = sorted(used, key=used.__getitem__)
    for less, more in pairwise(order):
        assert weights[less] >= weights[more]
    assert all(0 < weight < math.inf for weight in weights.values())
