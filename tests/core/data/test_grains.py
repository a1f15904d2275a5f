"""Laws of the division into grains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.data.grains import Stream, divide, pieces, seed_of

GRAIN = st.integers(1, 9)
SHARES = st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any)


@given(grain=GRAIN, counts=SHARES)
def test_a_plan_in_grains_is_kept(grain, counts):
    """Shares that are whole grains come out as they are."""
    shares = [grain * count for count in counts]
    assert divide(sum(shares), shares, grain=grain) == tuple(shares)


@given(grain=GRAIN, shares=SHARES, data=st.data())
def test_every_grain_is_whole(grain, shares, data):
    """Any plan for any smaller batch: all samples once, and each worker begins at a grain."""
    total = data.draw(st.integers(1, sum(shares)))
    sizes = divide(total, shares, grain=grain)
    assert sum(sizes) == total
    assert min(sizes) >= 0
    begins = [sum(sizes[:rank]) for rank in range(len(sizes))]
    assert all(b % grain == 0 for b, size in zip(begins, sizes, strict=True) if size)


@given(grain=GRAIN, first=st.integers(0, 5), number=st.integers(0, 40), start=st.integers(0, 99))
def test_pieces_cover_the_part(grain, first, number, start):
    """In order, each with its index in the step."""
    begin = start + first * grain
    found = list(pieces(range(begin, begin + number), grain=grain, start=start))
    assert [p for _, piece in found for p in piece] == list(range(begin, begin + number))
    assert [index for index, _ in found] == list(range(first, first + len(found)))


def test_seeds_are_known_and_different():
    """The same numbers for ever, and others for each place and purpose."""
    assert seed_of(0, 0, 0, 0, Stream.DATA) == 12659741793762702060
    assert seed_of(1, 2, 3, 4, Stream.MODEL) == 16759106066585351264
    places = [
        (seed, epoch, step, grain, stream)
        for seed in (0, 1)
        for epoch in (0, 1)
        for step in (0, 1)
        for grain in (0, 1)
        for stream in Stream
    ]
    assert len({seed_of(*place) for place in places}) == len(places)
