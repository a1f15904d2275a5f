"""Laws: parts and batches share the memory, and each part is on two workers if that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.shards.cut import NoRoom
from hetero_hvd.core.shards.rooms import StateRoom, shared, squeezed

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


@pytest.mark.parametrize(("samples", "left"), [(0, 100), (40, 60), (120, 0)])
def test_each_sample_takes_its_part_of_a_room(samples, left):
    """And the smallest micro-batch takes the rest."""
    assert StateRoom(200, 100, 1.0).beside(samples) == left
    assert StateRoom(50, 100, 1.0).beside(samples) == min(50, left)


@pytest.mark.parametrize(
    ("rooms", "held", "wanted"),
    [
        ((100, 100, 100), (67, 67, 66), (67, 67, 66)),
        ((105, 97, 100), (67, 67, 66), (67, 67, 66)),  # such a change moves nothing
        ((150, 100, 100), (67, 67, 66), (85, 57, 58)),
        ((100, 100, 100), (100, 50, 50), (66, 67, 67)),
        ((100, 100, 100), (100, 100, 0), (66, 67, 67)),
        ((105, 97, 100), (67, 67, 0), (69, 64, 67)),  # but what nobody holds has to move
    ],
)
def test_who_holds_what_stays_as_it_is_unless_another_cut_pays(rooms, held, wanted):
    """Of a state of a hundred blocks."""
    assert shared(100, rooms, rooms, held) == wanted


def test_where_memory_is_tight_nothing_moves_back_and_forth():
    """What batches have given up for parts stays theirs."""
    first = shared(100, (0, 40, 60), (70, 70, 100), (0, 0, 0))
    assert sum(first) == 200
    assert shared(100, (0, 38, 63), (70, 69, 100), first) == first
