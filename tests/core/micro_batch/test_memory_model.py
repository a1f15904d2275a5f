"""What a micro-batch needs is learnt from peaks, and none is proposed that would not fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.micro_batch.memory_model import HEAD_ROOM_RATIO, MemoryModel

BASE, SLOPE = st.floats(1e6, 1e11), st.floats(1e2, 1e8)
SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=6, unique=True)


def learnt(base, slope, sizes, *, idle=1.0):
    """A model that has seen exact peaks; `idle` of the base is in use before the first pass."""
    model = MemoryModel()
    model.start(idle * base)
    for size in sizes:
        model.observe(size, base + slope * size)
    return model


@given(base=BASE, slope=SLOPE, sizes=SIZES, idle=st.floats(0, 1), limit=st.floats(1e6, 1e12))
def test_the_cap_leaves_the_head_room(base, slope, sizes, idle, limit):
    """Whatever was seen of a straight line, what is proposed beyond it stays below the limit."""
    cap = learnt(base, slope, sizes, idle=idle).cap(limit)
    allowed = limit * (1 - HEAD_ROOM_RATIO)
    if cap > max(sizes):
        assert base + slope * cap <= allowed * (1 + 1e-6)


@given(base=BASE, slope=SLOPE, sizes=SIZES, limit=st.floats(1e6, 1e12))
def test_two_sizes_tell_the_line(base, slope, sizes, limit):
    """Then the cap is the largest size that fits, not a sample less."""
    sizes = [*sizes, 2 * max(sizes), 4 * max(sizes)]
    model = learnt(base, slope, sizes, idle=0.5)
    if slope * min(sizes) < 1e-6 * base:  # lost in rounding
        return
    assert model.line() == (pytest.approx(base, rel=1e-3), pytest.approx(slope, rel=1e-3))
    best = (limit * (1 - HEAD_ROOM_RATIO) - base) / slope
    if best >= 2:
        assert model.cap(limit) == pytest.approx(best, rel=1e-2, abs=1 + 1e-3 * base / slope)


@given(
    points=st.lists(
        st.tuples(st.integers(1, 1000), st.floats(0, 1e10)), min_size=1, unique_by=lambda p: p[0]
    )
)
def test_no_measured_peak_is_above_the_line(points):
    """A noisy peak counts for what it was."""
    model = MemoryModel()
    model.start(0.0)
    for size, peak in points:
        model.observe(size, peak)
    base, slope = model.line()
    assert base >= 0
    assert slope >= 0
    assert all(base + slope * size >= peak - 1e-3 for size, peak in points)


@given(SIZES, st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_peaks_that_do_not_grow_give_no_limit_and_no_number_that_is_beyond_any(sizes, peak, noise):
    """Which could not be told to anybody: an integer of 64 bits holds what is."""
    model = MemoryModel()
    model.start(peak)
    for number, size in enumerate(sizes):
        model.observe(size, peak + noise * number)
    assert model.cap(1e15) == 0


def test_nothing_is_known_before_the_first_step():
    """No line and no cap; neither where the limit is not known."""
    model = MemoryModel()
    assert model.line() is None
    assert model.cap(1e9) == 0
    assert learnt(1e6, 1e3, [8]).cap(math.nan) == 0


def test_a_limit_that_wavers_does_not_move_the_cap():
    """Only what changes it by more than a tenth does."""
    model = learnt(0.0, 1e6, [10, 20])
    assert model.cap(1e9) == 900
    assert model.cap(1.05e9) == 900
    assert model.cap(0.8e9) == 720


def test_what_has_worked_stays_where_nothing_smaller_would_help():
    """The base alone is above the limit less its head room."""
    assert learnt(0.95e9, 1e5, [100, 200]).cap(1e9) == 200
