"""Each sample is stored once, in time that never goes back, and nodes that are silent are named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.backoff import jittered
from hetero_hvd.core.recording.health import FleetHealth
from hetero_hvd.core.recording.sequences import NumberRange, accept
from hetero_hvd.core.recording.sessions import RecordingSession, wanted_seconds
from hetero_hvd.core.recording.timeline import MICROSECONDS, ClockAnchor, aligned, new_anchor
from hetero_hvd.errors import UserError

BATCHES = {
    "the next ones": (5, 5, 3, (0, None, 8)),
    "all sent again": (5, 1, 4, (4, None, 5)),
    "some sent again": (5, 3, 4, (2, None, 7)),
    "after some that were dropped": (5, 9, 2, (0, NumberRange(5, 8), 11)),
    "none": (5, 9, 0, (0, None, 5)),
    "the first": (1, 1, 1, (0, None, 2)),
}


@pytest.mark.parametrize(("known", "first", "count", "expected"), BATCHES.values(), ids=BATCHES)
def test_what_becomes_of_a_batch(known, first, count, expected):
    """Duplicates are left out, a gap is known by its numbers."""
    assert accept(known, first, count) == expected


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10)), max_size=30))
def test_whatever_comes_each_number_is_stored_or_missing(batches):
    """Once, whatever is repeated or skipped."""
    known, stored, missing = 1, [], []
    for first, count in batches:
        found = accept(known, first, count)
        stored += range(first + found.num_duplicates, first + count)
        if found.missing is not None:
            missing += range(found.missing.first, found.missing.last + 1)
        known = found.next_sequence
    assert sorted(stored + missing) == list(range(1, known))


def test_samples_bear_the_hubs_time():
    """In their order, even where an offset was corrected; none is in the future."""
    found = aligned(
        [1.0, 2.0, 3.0, 9.0],
        100.0,
        after_microseconds=round(101.5e6),
        now_microseconds=round(103.5e6),
    )
    assert found.microseconds == [101_500_001, 102_000_000, 103_000_000, 103_500_000]
    assert found.num_ahead == 1


ANCHORS = {
    "its first start": (None, 5000.0, 5000.0),
    "a death and a new start": (ClockAnchor("b", 10.0, 4000.0), 4090.0, 4090.0),
    "the wall clock was set back an hour": (ClockAnchor("b", 10.0, 4000.0), 490.0, 4090.0),
    "the wall clock was set forward": (ClockAnchor("b", 10.0, 4000.0), 9000.0, 9000.0),
    "another boot": (ClockAnchor("a", 10.0, 4000.0), 4500.0, 4500.0),
    "another boot with a wrong clock": (ClockAnchor("a", 10.0, 4000.0), 1.0, 4050.0),
    "the same, and nothing was stored since": (ClockAnchor("a", 10.0, 4060.0), 1.0, 4060.0),
}


@pytest.mark.parametrize(("earlier", "wall", "shows"), ANCHORS.values(), ids=ANCHORS)
def test_the_hubs_clock_never_goes_back(earlier, wall, shows):
    """Whatever the wall clock says when the hub starts; 4050 is the newest that is stored."""
    newest = 4050.0 if earlier else 0.0
    found = new_anchor(
        earlier, boot="b", at_seconds=100.0, wall_seconds=wall, newest_seconds=newest
    )
    assert found.at(100.0) == shows
    assert found.at(101.0) == shows + 1


def test_who_is_silent_is_told_once_and_when_he_is_back():
    """After more than 30 s."""
    fleet = FleetHealth({"a"}, 0.0, {})
    assert fleet.heard("b", 10.0) is None
    assert fleet.silent(30.0) == []
    assert [change.node for change in fleet.silent(31.0)] == ["a"]
    assert fleet.silent(32.0) == []
    assert not fleet.is_healthy("a")
    assert fleet.is_healthy("b")
    back = fleet.heard("a", 40.0)
    assert (back.is_healthy, back.silent_seconds) == (True, 40.0)
    assert fleet.is_healthy("a")


def test_who_was_silent_before_is_told_when_he_is_back():
    """And not that he is silent, a second time."""
    fleet = FleetHealth({"a", "b"}, 100.0, {"a": 50.0})
    assert [change.node for change in fleet.silent(131.0)] == ["b"]
    assert fleet.heard("a", 140.0).silent_seconds == 90.0


def session(name="s", begin=0, end=None, **more):
    """One."""
    return RecordingSession(name=name, from_microseconds=begin, until_microseconds=end, **more)


def test_a_session_is_an_interval_and_a_filter():
    """Its end is not in it."""
    one = session(begin=5, end=9, nodes=("a",))
    found = [at for at in range(12) if one.has("a", at)]
    assert found == [5, 6, 7, 8]
    assert not one.has("b", 6)


def test_the_fastest_session_that_goes_on_sets_the_rate():
    """Of those that are about the node."""
    sessions = [
        session("slow", every_seconds=5.0),
        session("fast", every_seconds=0.5, nodes=("a",)),
        session("over", end=1, every_seconds=0.25),
    ]
    assert wanted_seconds(sessions, "a") == 0.5
    assert wanted_seconds(sessions, "b") == 5.0
    assert wanted_seconds([], "b") == 1.0


WRONG = {
    "no name": {"name": ""},
    "a path": {"name": "../x"},
    "too often": {"every_seconds": 0.1},
    "too seldom": {"every_seconds": 61.0},
    "backwards": {"begin": 5, "end": 1},
    "before 1970": {"begin": -1},
    "after 9999": {"begin": 10**18},
    "an end after 9999": {"end": 10**18},
    **{f"kept for {limit} s": {"keep_seconds": limit} for limit in (0, -1.0, math.inf, math.nan)},
    **{f"kept to {limit} bytes": {"keep_bytes": limit} for limit in (0, -1, 2**63, 10**400)},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_no_session_is_one_line(wrong):
    """That says what is allowed."""
    with pytest.raises(UserError, match="session") as found:
        session(**wrong)
    assert "\n" not in str(found.value)


def test_who_has_failed_waits_between_two_times():
    """So that a thousand come back one by one."""
    assert [jittered(1.0, 9.0, chance) for chance in (0.0, 0.5, 1.0)] == [1.0, 5.0, 9.0]
    assert MICROSECONDS == 1_000_000
