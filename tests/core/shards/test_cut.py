"""Laws: each part on two workers, none above its room, and as few blocks move as can be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetero_hvd.core.shards.cut import (
    NoRoom,
    Span,
    as_held,
    contributors,
    cut,
    loads,
    lost,
    moves,
    rescues,
    spans_of,
)

ROOMS = st.lists(st.integers(0, 400), min_size=2, max_size=7)
BLOCKS = st.integers(0, 300)


def covered(spans):
    """The blocks of some spans."""
    return [block for span in spans for block in range(*span)]


def holdings(parts, num_ranks):
    """Rank to spans."""
    return {rank: spans_of(parts, rank) for rank in range(num_ranks)}


def wanted_or_skip(num_blocks, rooms):
    """The loads, where there is room."""
    assume(sum(min(num_blocks, room) for room in rooms) >= 2 * num_blocks)
    return loads(num_blocks, rooms)


@given(BLOCKS, ROOMS)
def test_loads_fill_two_copies_and_no_room_is_passed(num_blocks, rooms):
    """If there is room, all is held twice; if not, that is said."""
    limits = [min(num_blocks, room) for room in rooms]
    if sum(limits) < 2 * num_blocks:
        with pytest.raises(NoRoom):
            loads(num_blocks, rooms)
        return
    found = loads(num_blocks, rooms)
    assert sum(found) == 2 * num_blocks
    assert all(0 <= load <= limit for load, limit in zip(found, limits, strict=True))


@given(st.integers(1, 10**9), st.lists(st.integers(1, 10**9), min_size=2, max_size=7))
def test_loads_are_in_proportion_to_the_rooms(num_blocks, rooms):
    """Of two workers that hold less than everything, both hold the same part of their room."""
    wanted = wanted_or_skip(num_blocks, rooms)
    below = [
        (load, room)
        for load, room in zip(wanted, rooms, strict=True)
        if load < min(num_blocks, room)
    ]
    for (one, its_room), (other, the_others) in itertools.combinations(below, 2):
        assert abs(one / its_room - other / the_others) <= 3 / min(its_room, the_others)


@given(BLOCKS, ROOMS)
def test_a_fresh_cut_is_held_twice_by_distinct_workers(num_blocks, rooms):
    """It covers the state once, and each rank holds what it is to, in three spans at most."""
    wanted = wanted_or_skip(num_blocks, rooms)
    parts = cut(num_blocks, wanted, {})
    assert covered(part.span for part in parts) == list(range(num_blocks))
    assert all(len(set(part.holders)) == 2 for part in parts)
    for rank, load in enumerate(wanted):
        spans = spans_of(parts, rank)
        assert sum(span.length for span in spans) == load
        assert len(spans) <= 2
    told = contributors(parts)
    assert [span for span, _ in told] == [part.span for part in parts]
    assert all(rank in part.holders for (_, rank), part in zip(told, parts, strict=True))


@given(BLOCKS, ROOMS, st.data())
def test_a_change_of_workers_moves_no_more_than_it_must(num_blocks, rooms, data):
    """After losses, joins and other rooms: who keeps what decides what is sent, all from holders.

    What one is to have and does not have must come; what none of those holds is named as lost.
    """
    before = cut(num_blocks, wanted_or_skip(num_blocks, rooms), {})
    names = list(range(len(rooms)))
    left = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    new = data.draw(st.lists(st.integers(0, 400), max_size=3))
    now = [rooms[name] for name in left] + new
    assume(len(now) > 1)
    held = {rank: spans_of(before, name) for rank, name in enumerate(left)}
    gone = lost(num_blocks, held)
    kept = {block for spans in held.values() for block in covered(spans)}
    assert set(covered(gone)) == set(range(num_blocks)) - kept
    after = cut(num_blocks, wanted := wanted_or_skip(num_blocks, now), held)
    assert covered(part.span for part in after) == list(range(num_blocks))
    assert all(len(set(part.holders)) == 2 for part in after)
    sent = moves(after, held)
    for move in sent:
        blocks = set(covered([move.span]))
        assert blocks <= set(covered(held[move.giver]))
        assert not blocks & set(covered(held.get(move.taker, [])))
    for rank, load in enumerate(wanted):
        has = set(covered(held.get(rank, []))) | set(covered(gone))
        got = set(covered(m.span for m in sent if m.taker == rank))
        assert set(covered(spans_of(after, rank))) <= has | got
        assert load == len(covered(spans_of(after, rank)))


@given(BLOCKS, ROOMS, st.data())
def test_who_leaves_leaves_nothing_behind_that_nobody_else_has(num_blocks, rooms, data):
    """Those who stay take just what only those who leave have, and none more than its room."""
    names = list(range(len(rooms)))
    before = cut(num_blocks, wanted_or_skip(num_blocks, rooms), {})
    held = holdings(before, len(rooms))
    leaving = data.draw(st.sets(st.sampled_from(names), max_size=len(rooms)))
    copies = min(2, len(rooms) - len(leaving))
    own = [0 if rank in leaving else room for rank, room in enumerate(rooms)]
    sent = rescues(num_blocks, rooms, held, leaving)
    is_short = sum(min(num_blocks, room) for room in own) < copies * num_blocks
    if not copies or (is_short and max(own) < num_blocks):
        assert sent is None
        return
    has = {rank: set(covered(spans)) for rank, spans in held.items()}
    stays = set().union(*(has[rank] for rank in names if rank not in leaving), set())
    moved = covered(move.span for move in sent)
    assert sorted(moved) == sorted(set(range(num_blocks)) - stays)
    for move in sent:
        assert move.taker not in leaving
        assert set(covered([move.span])) <= has[move.giver]
    for rank, room in enumerate(rooms):
        got = set(covered(move.span for move in sent if move.taker == rank))
        assert len(got) <= room


def placements(num_blocks, wanted):
    """All ways to place two copies of each block."""
    pairs = list(itertools.combinations(range(len(wanted)), 2))
    for choice in itertools.product(pairs, repeat=num_blocks):
        counts = [sum(rank in pair for pair in choice) for rank in range(len(wanted))]
        if counts == list(wanted):
            yield choice


@given(st.integers(1, 5), st.lists(st.integers(1, 5), min_size=3, max_size=4), st.data())
def test_nothing_moves_less(num_blocks, rooms, data):
    """Against all ways that there are, whoever holds whatever before."""
    wanted = wanted_or_skip(num_blocks, rooms)
    blocks = st.sets(st.integers(0, num_blocks - 1))
    held = {rank: [Span(b, b + 1) for b in sorted(data.draw(blocks))] for rank in range(len(rooms))}
    owners = {rank: set(covered(spans)) for rank, spans in held.items()}
    parts = cut(num_blocks, wanted, held)
    ours = sum(
        block not in owners[rank]
        for part in parts
        for block in range(*part.span)
        for rank in part.holders
    )
    least = min(
        sum(block not in owners[rank] for block, pair in enumerate(choice) for rank in pair)
        for choice in placements(num_blocks, wanted)
    )
    assert ours == least


def test_all_workers_decide_alike_and_nothing_moves_without_a_change():
    """The same numbers give the same cut; what is held as it should be stays."""
    wanted = loads(1000, [2400, 1200, 800])
    parts = cut(1000, wanted, {})
    held = holdings(parts, 3)
    assert cut(1000, wanted, held) == parts
    assert moves(parts, held) == []
    assert as_held(1000, held) == parts
    assert wanted == [1000, 600, 400]
