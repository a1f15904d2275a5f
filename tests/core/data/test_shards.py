"""Every sample is consumed exactly once per epoch, in one order, whoever computes it."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.data.shards import (
    divide,
    permutation,
    slice_of,
    step_positions,
    steps_per_epoch,
)
from tests.work import lines_run

FROZEN_ORDER = "8a8525bbc14d6444f8b28910ef32779da20c1dae3588ddb4be90f78c6846db8b"
"""Of seed 7, epoch 2, 1000 samples."""

shares_lists = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum)


@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 2**32), st.data())
def test_any_history_of_plans_and_members_consumes_each_sample_once(size, batch, seed, data):
    """Plans, worker counts and resets between steps never lose, repeat or move a sample."""
    order = permutation(size, seed=seed, epoch=3)
    consumed = []
    for step in range(steps_per_epoch(size, batch, drop_last=False)):
        num_workers = data.draw(st.integers(1, 5))
        cuts = sorted(data.draw(st.lists(st.integers(0, batch), min_size=num_workers - 1)))
        cuts = [0, *cuts[: num_workers - 1], batch]
        plan = [right - left for left, right in itertools.pairwise(cuts)]
        positions = step_positions(step, num_samples=size, global_batch_size=batch)
        sizes = divide(len(positions), plan)
        parts = [list(slice_of(positions, sizes, rank)) for rank in range(len(sizes))]
        taken = [position for part in parts for position in part]
        assert taken == list(range(step * batch, min((step + 1) * batch, size)))
        consumed += taken
    assert sorted(order[consumed]) == list(range(size))


@given(st.integers(0, 1000), st.integers(1, 100))
def test_dropping_the_last_batch_leaves_whole_ones(size, batch):
    """With drop_last every step is full; without it all samples are covered."""
    whole = steps_per_epoch(size, batch, drop_last=True)
    every = steps_per_epoch(size, batch, drop_last=False)
    assert whole * batch <= size < (whole + 1) * batch
    assert (every - 1) * batch < size <= every * batch or every == size == 0


@given(shares_lists, st.data())
def test_a_smaller_batch_is_divided_like_the_plan(shares, data):
    """Exact sum, within one sample of proportional, no share exceeded, zero stays zero."""
    total = data.draw(st.integers(0, sum(shares)))
    sizes = divide(total, shares)
    assert sum(sizes) == total
    for size, share in zip(sizes, shares, strict=True):
        assert 0 <= size <= share
        assert abs(size - total * share / sum(shares)) < 1
    assert divide(sum(shares), shares) == tuple(shares)


@pytest.mark.parametrize("total", [-1, 8])
def test_a_batch_larger_than_the_plan_is_refused(total):
    """The message says what is allowed."""
    with pytest.raises(ValueError, match="must be 0 to 7, as planned"):
        divide(total, [3, 4])


def test_the_order_is_frozen():
    """The same on every machine, for ever: a changed stream would break running clusters."""
    order = permutation(1000, seed=7, epoch=2)
    digest = hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()
    assert digest == FROZEN_ORDER
    assert order.dtype == np.int64


def test_epochs_and_seeds_are_shuffled_differently():
    """Neither epoch nor seed repeats another's order, not even with the two swapped."""
    keys = [(seed, epoch) for seed in range(4) for epoch in range(4)]
    orders = {permutation(50, seed=seed, epoch=epoch).tobytes() for seed, epoch in keys}
    assert len(orders) == len(keys)


def test_ten_million_samples_are_shuffled_without_a_python_loop():
    """A few lines of Python run, however many the samples are."""
    orders = []
    work = lines_run(lambda: orders.append(permutation(10_000_000, seed=1, epoch=0)))
    assert work < 100
    (order,) = orders
    assert order.shape == (10_000_000,)
