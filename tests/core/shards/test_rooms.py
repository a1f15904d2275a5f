"""Laws: parts and batches share the memory, and each part is on two workers if that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.shards.cut import NoRoom
from hetero_hvd.core.shards.rooms import StateRoom, shared, squeezed, steady

WORKERS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=6)


@given(st.integers(0, 300), WORKERS)
def test_all_is_held_and_nobody_has_more_than_the_smallest_batches_leave(num_blocks, workers):
    """On two workers; or on one that holds everything; or it is said that there is no room."""
    most = [room + more for room, more in workers]
    rooms = [room for room, _ in workers]
    copies = min(2, len(workers))
    limits = [min(num_blocks, each) for each in most]
    if sum(limits) >= copies * num_blocks:
        found = shared(num_blocks, rooms, most, [0] * len(workers))
        assert sum(found) == copies * num_blocks
    elif max(most) >= num_blocks:
        found = shared(num_blocks, rooms, most, [0] * len(workers))
        assert sorted(found)[-2:] == [0, num_blocks]
    else:
        with pytest.raises(NoRoom):
            shared(num_blocks, rooms, most, [0] * len(workers))
        return
    assert all(0 <= load <= limit for load, limit in zip(found, limits, strict=True))


@given(st.integers(1, 300), WORKERS)
def test_batches_give_way_no_more_than_they_must(num_blocks, workers):
    """Where rooms are enough they stay; else they grow by what is missing, but for rounding."""
    most = [room + more for room, more in workers]
    rooms = [room for room, _ in workers]
    copies = min(2, len(workers))
    before = sum(min(num_blocks, each) for each in rooms)
    try:
        found = squeezed(num_blocks, rooms, most, copies)
    except NoRoom:
        assert sum(min(num_blocks, each) for each in most) < copies * num_blocks
        return
    if before >= copies * num_blocks:
        assert found == tuple(rooms)
    else:
        assert 0 <= sum(found) - copies * num_blocks < len(workers)


def test_who_holds_most_already_is_the_one_who_holds_all():
    """Of several who can."""
    assert shared(10, (3, 10, 10), (3, 10, 10), (0, 0, 4)) == (2, 9, 9)
    assert shared(10, (10, 3), (10, 3), (0, 0)) == (10, 0)
    assert shared(10, (2, 15, 1), (2, 15, 1), (9, 0, 0)) == (0, 10, 0)


@pytest.mark.parametrize(
    ("idle", "cut", "samples", "wanted"),
    [
        (100, 0, 0, 100),
        (100, 100, 5, 100),  # a change of less than the threshold moves nothing
        (105, 100, 0, 100),
        (92, 100, 0, 100),
        (88, 100, 0, 88),
        (100, 100, 40, 60),
        (150, 100, 0, 150),
        (300, 100, 0, 200),  # the smallest micro-batch takes the rest
        (205, 230, 0, 200),  # nobody holds more than beside that
    ],
)
def test_a_room_is_another_one_only_if_that_pays(idle, cut, samples, wanted):
    """Each sample takes a block."""
    room = StateRoom(200, idle, 1.0, cut)
    assert steady(room, samples) == wanted
