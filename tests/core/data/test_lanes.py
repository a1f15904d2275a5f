"""Each sample has one place in the order, and a worker's part of a batch lies in few lanes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.data.lanes import lane_order, lanes_of

some_lengths = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@given(some_lengths, st.integers(1, 8), st.integers(1, 20), st.randoms(use_true_random=False))
def test_every_sample_has_one_place_and_each_shard_is_read_on(lengths, num_lanes, batch, chance):
    """Whatever the shards, also empty ones."""
    order = list(range(len(lengths)))
    chance.shuffle(order)
    lanes = lanes_of(lengths, order, num_lanes)
    assert sorted(shard for lane in lanes for shard in lane) == sorted(order)
    found = lane_order(lengths, lanes, batch)
    assert sorted(found.tolist()) == list(range(sum(lengths)))
    ends = np.cumsum([0, *lengths])
    for start, end in pairwise(ends):
        own = found[(found >= start) & (found < end)]
        assert (np.diff(own) == 1).all()


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 9))
def test_a_part_of_a_batch_is_in_the_same_lanes_in_each_step(num_lanes, each, num_steps):
    """With lanes of one length every batch takes as much of each, in their order."""
    lengths = [each * num_steps] * num_lanes
    batch = num_lanes * each
    found = lane_order(lengths, [[lane] for lane in range(num_lanes)], batch)
    lane_at = (found // (each * num_steps)).reshape(num_steps, batch)
    assert (lane_at == np.repeat(np.arange(num_lanes), each)).all()


def test_lanes_are_about_as_long():
    """A long shard has a lane to itself."""
    assert lanes_of([9, 1, 1, 1, 9], [0, 1, 2, 3, 4], 2) == [[0], [1, 2, 3, 4]]
    assert lanes_of([9, 3, 3, 3, 9], [0, 1, 2, 3, 4], 3) == [[0], [1, 3], [2, 4]]
    assert lanes_of([1], [0], 5) == [[0]]
