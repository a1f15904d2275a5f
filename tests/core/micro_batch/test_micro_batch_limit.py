"""What was too large once is not tried again soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.micro_batch.micro_batch_limit import (
    FORGET_SECONDS,
    MicroBatchLimit,
    evenly,
    smaller,
)


@given(size=st.integers(2, 10_000), at=st.floats(0, 1e9), later=st.floats(0, FORGET_SECONDS - 1))
def test_half_of_what_failed_is_the_limit_for_an_hour(size, at, later):
    """Until then nothing as large is proposed, however often it is asked."""
    limit = MicroBatchLimit()
    assert limit.at(at) == 0
    limit.reject(size, now_seconds=at)
    assert limit.at(at) == limit.at(at + later) == size // 2
    assert limit.at(at + FORGET_SECONDS + 1) == 0


def test_a_change_of_the_cluster_voids_a_failure_but_not_a_kill():
    """What cost a whole process is not tried again."""
    limit = MicroBatchLimit(lasting=24)
    limit.reject(32, now_seconds=0)
    assert limit.at(1) == 16
    limit.reset()
    assert limit.at(1) == 24


@given(share=st.integers(1, 10_000), limit=st.integers(0, 10_000))
def test_pieces_are_as_few_and_as_equal_as_the_limit_allows(share, limit):
    """No piece is above it, and one piece fewer would not do."""
    size = evenly(share, limit)
    assert 1 <= size <= (limit or share)
    assert -(-share // size) == (-(-share // limit) if limit else 1)


def test_none_of_the_limits_may_be_one():
    """Zero stands for none."""
    assert (smaller(), smaller(0, 0), smaller(0, 5, 3)) == (0, 0, 3)
