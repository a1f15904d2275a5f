"""Samples that are too old or too many go, the oldest first, and who loses some is told before."""

from __future__ import annotations

import asyncio

import pytest

from hetero_hvd.cli.record.record import _lines
from hetero_hvd.cli.record.times import duration, positive, shown_duration, time_of
from hetero_hvd.core.recording.retention import (
    Retention,
    SegmentPart,
    StoredSegment,
    forgotten,
)
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.keeping import StoreKeeping
from hetero_hvd.hub.storage.index import FleetMark
from hetero_hvd.run.recordings.frames import read_frames
from tests.hub.test_store import ALL, WALL, batch, clocks, numbers, opened

__all__ = ["clocks", "opened"]
DAY = 86400
MICROSECONDS = 10**6


def at(days):
    """So many days after the first sample, in microseconds."""
    return round(days * DAY * MICROSECONDS)


SEGMENTS = [
    StoredSegment(
        number,
        (
            SegmentPart("a", at(number - 1), at(number) - 1, 60),
            SegmentPart("b", at(number - 1), at(number) - 1, 40),
        ),
    )
    for number in range(1, 5)
]
"""Of a day each, 100 bytes."""

NOW = at(4.5)


def session(name="s", begin=0.0, days=None, **more):
    """One that says how long its samples are kept."""
    seconds = None if days is None else days * DAY
    return RecordingSession(name=name, from_microseconds=at(begin), keep_seconds=seconds, **more)


GOING = {
    "none": (Retention(), [], [], []),
    "a session without limits": (Retention(), [session()], [], []),
    "older than two days and a half": (Retention(2.5 * DAY), [], [1, 2], [1, 2, 3]),
    "beyond 250 bytes": (Retention(None, 250), [], [1, 2], [1, 2, 3]),
    "both": (Retention(3.5 * DAY, 150), [], [1, 2, 3], [1, 2, 3, 4]),
    "its session keeps it longer": (Retention(2.5 * DAY), [session(days=10)], [], []),
    "its session keeps it less long": (Retention(), [session(days=1.5)], [1, 2, 3], [1, 2, 3, 4]),
    "another node's are wanted": (Retention(), [session(days=1.5, nodes=("a",))], [], []),
    "both nodes' sessions are done with it": (
        Retention(),
        [session("s", days=1.5, nodes=("a",)), session("t", days=2.5, nodes=("b",))],
        [1, 2],
        [1, 2, 3],
    ),
    "what was before it stays": (Retention(), [session(begin=2, days=1.5)], [3], [3, 4]),
    "its session is full": (Retention(), [session(keep_bytes=250)], [1, 2], [1, 2, 3]),
    "it is of two sessions": (
        Retention(2.5 * DAY), [session("s", days=1), session("t", days=10)], [], [],
    ),
    "all are full": (Retention(None, 250), [session(days=10)], [1, 2], [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize(("retention", "sessions", "now", "soon"), GOING.values(), ids=GOING)
def test_what_nobody_wants_goes(retention, sessions, now, soon):
    """By age and size, of the hub and of each session; a limit for all is above them."""
    assert [each.number for each in retention.going(SEGMENTS, sessions, NOW)] == now
    found = retention.going(SEGMENTS, sessions, NOW, ahead_seconds=DAY)
    assert [each.number for each in found] == soon


LIMITS = {
    "the hub's": (Retention(2 * DAY), {}),
    "its own": (Retention(), {"keep_seconds": 2 * DAY}),
}


@pytest.mark.parametrize(("retention", "own"), LIMITS.values(), ids=LIMITS)
def test_what_goes_is_told_before_and_gone_afterwards(opened, clocks, caplog, retention, own):
    """Of a session that has no folder; the rest stays."""
    store = opened()
    store.commit([batch(1, 3)])
    store.seal()
    clocks.since_boot += 1.5 * DAY
    late = batch(4, 1, offset=WALL - 1000 + 1.5 * DAY)
    store.commit([late])
    store.seal()
    night = RecordingSession(name="night", from_microseconds=round((WALL - 99) * 1e6), **own)
    notices = {}
    keeping = StoreKeeping(store, retention, lambda: [night], notices.__setitem__)
    keeping.look()
    assert numbers(store) == [1, 2, 3, 4]
    (mark,) = store.index.marks(night)
    assert "night loses its first samples" in mark.words
    assert notices == {"night": mark.words}
    clocks.since_boot += DAY
    keeping.look()
    assert numbers(store) == [4]
    assert len(list((store.folder / "segments").iterdir())) == 1
    assert len([record for record in caplog.records if "loses" in record.message]) == 1
    assert numbers(opened()) == [4]


def test_nodes_that_no_session_names_are_told_apart_by_nobody(opened):
    """What is kept in the memory does not grow with the cluster; what goes is the same."""
    store = opened()
    store.commit([batch(1, 1 + n, stream=f"s{n}", node=f"n{n}") for n in range(9)])
    store.seal()
    (one,), (each,) = store.index.segments(), store.index.segments(["n2", "n5", "away"])
    ((own, *_),) = [[part for part in each.parts if part.node == "n2"]]
    assert [part.node for part in one.parts] == [""]
    assert sorted(part.node for part in each.parts) == ["", "n2", "n5"]
    assert (one.begin, one.end, one.size_bytes) == (each.begin, each.end, each.size_bytes)
    assert own.end - own.begin == 2 * MICROSECONDS


def test_streams_and_gaps_go_with_their_samples(opened, clocks):
    """Of each node the newest stream stays: what its agent sends again is known to be stored."""
    store = opened()
    keeping = StoreKeeping(store, Retention(2 * DAY), list)
    for day in range(6):  # each an agent that is started anew, which has dropped some
        clocks.since_boot = 1000.0 + day * DAY
        offset = WALL - 1000 + day * DAY
        store.commit([batch(1, 2, stream=f"s{day}", offset=offset)])
        store.commit([batch(5, 2, stream=f"s{day}", offset=offset)])
        store.commit([batch(1 + 2 * day, 1, stream="long", node="b", offset=offset)])
        if day == 0:
            store.commit([batch(1, 1, stream="away", node="c", offset=offset)])
        if day < 5:
            store.seal()
        keeping.look()
    for _ in range(2):
        assert set(store.streams()) == {"s4", "s5", "long", "away"}
        assert set(store.missing()) == {"s4", "s5", "long"}
        assert store.missing()["long"] == [(10, 10)]
        store = opened()
    assert store.commit([batch(1, 1, stream="away", node="c")]) == [2]
    assert store.num_duplicates == 1
    session = RecordingSession(name="all", from_microseconds=0)
    (piece, *_) = [p for each in store.stored(session) for p in each.pieces]
    store.delete_segment(piece.segment)
    assert store.read_piece(piece, len) is None
    assert store.num_damaged == 0


def test_the_next_session_of_a_name_is_told_too(opened, clocks, caplog):
    """The name of one that is forgotten may be given again."""
    store = opened()
    keeping = StoreKeeping(store, Retention(2 * DAY), store.index.sessions)
    for number, now in enumerate((0.0, 1.5, 2.75)):
        clocks.since_boot = 1000.0 + now * DAY
        store.commit([batch(1 + number, 1, offset=WALL - 1000 + now * DAY)])
        store.seal()
        keeping.look()
        if not store.index.sessions():
            begin = round(WALL * 1e6) + at(now)
            store.index.put_session(
                RecordingSession(
                    name="night", from_microseconds=begin - at(1.3), until_microseconds=begin + 1
                )
            )
            keeping.look()
    assert len([record for record in caplog.records if "night loses" in record.message]) == 2


def ended(name, begin, end, **more):
    """A session of some days."""
    return session(name, begin, until_microseconds=at(end), **more)


FORGOTTEN = {
    "one that goes on": (session("s", 0), SEGMENTS[3:], []),
    "one that has ended before all that is kept": (ended("s", 0, 2), SEGMENTS[3:], ["s"]),
    "one of which some is kept": (ended("s", 0, 2), SEGMENTS[1:], []),
    "one whose samples are perhaps in a journal": (ended("s", 5, 6), SEGMENTS, []),
    "nothing is in segments": (ended("s", 0, 2), [], []),
    "one of a node that is gone": (ended("s", 1, 2, nodes=("c",)), SEGMENTS, []),
    "the same with limits of its own": (ended("s", 1, 2, nodes=("c",), days=1), SEGMENTS, ["s"]),
}


@pytest.mark.parametrize(("one", "segments", "names"), FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_session_is_forgotten_with_its_last_samples(one, segments, names):
    """Not before, and not where some may come."""
    assert [each.name for each in forgotten([one], segments)] == names


def test_what_is_about_samples_that_are_gone_goes_with_them(opened, clocks):
    """Sessions and marks; but of each node it stays known whether it is heard."""
    store = opened()
    for day in range(4):
        store.commit([batch(1 + day, 1, offset=WALL - 1000 + day * DAY)])
        store.seal()
        clocks.since_boot += DAY
    wall = round(WALL * 1e6)
    marks = [
        FleetMark(wall + at(day), node, kind, str(day))
        for node in "ab"
        for day, kind in ((0.2, "unhealthy"), (0.3, "healthy"), (2.5, "unhealthy"))
        if node == "a" or day < 1
    ]
    store.index.mark(*marks)
    commands = HubCommands(store, fleet := Fleet(store, lambda: 0.0))
    first = {"from": WALL - 500, "to": WALL + DAY / 2, "name": "first"}
    asyncio.run(commands.act("cut", first))
    asyncio.run(commands.act("start", {"name": "watch", "from": WALL - 500}))
    keeping = StoreKeeping(
        store, Retention(2.5 * DAY), commands.unwritten, fleet.note, fleet.forget
    )
    assert "forgotten with its last ones" not in str(fleet.notices)
    keeping.look()
    assert [each.name for each in fleet.sessions] == ["watch"]
    assert [each.name for each in store.index.sessions()] == ["watch"]
    assert "forgotten with its last ones" in fleet.notices["watch"]
    left = [(mark.node, mark.words) for mark in store.index.marks(ALL) if mark.node]
    assert left == [("b", "0.3"), ("a", "2.5")]
    assert (store.folder / "recordings" / "first").is_dir()
    for action in ("start", "cut"):
        with pytest.raises(UserError, match="there is a recording of that name"):
            asyncio.run(commands.act(action, first))
    told = asyncio.run(commands.act("start", first | {"is_numbered": True}))
    assert told["name"] == "first-2"


def test_a_folder_that_is_written_keeps_what_the_store_has_no_more(opened):
    """To write it anew with less is refused, in one line."""
    store = opened()
    store.commit([batch(1, 3)])
    store.seal()
    store.commit([batch(4, 1)])
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    asyncio.run(commands.act("cut", {"name": "part", "from": 1}))
    (segment,) = store.index.segments()
    store.delete_segment(segment.number)
    with pytest.raises(JobError, match="has 4 samples, of which the store has only 1") as told:
        asyncio.run(commands.act("cut", {"name": "part"}))
    assert "\n" not in str(told.value)
    assert len(list(read_frames(store.folder / "recordings" / "part"))) == 4
    assert [path.name for path in (store.folder / "recordings").iterdir()] == ["part"]


SHOWN = {0.25: "250ms", 1.0: "1s", 59.5: "59.5s", 90.0: "1.5m", 7200.0: "2h", 604800.0: "7d"}


@pytest.mark.parametrize("seconds", SHOWN)
def test_a_duration_is_shown_as_it_is_given(seconds):
    """So that it can be given again."""
    assert shown_duration(seconds) == SHOWN[seconds]
    assert duration("--x", SHOWN[seconds]) == seconds


TERMS = {
    "no limits": ({}, "every 1s"),
    "limits": (
        {"every_seconds": 0.5, "keep_seconds": 7.0 * DAY, "keep_bytes": 10},
        "every 500ms, kept for 7d, at most 10 bytes",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), TERMS.values(), ids=TERMS)
def test_the_status_tells_what_limits_a_session(opened, arguments, words):
    """As long as it goes on."""
    store = opened()
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    asyncio.run(commands.act("start", {"name": "x"} | arguments))
    told = asyncio.run(commands.act("status", {}))
    assert _lines("status", told)[0].endswith(f"goes on  all nodes  {words}")


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (
            {"is_healthy": True, "is_doubled": True},
            "node a  is heard  two agents send by this name  3 samples, 1 missing",
        ),
        ({"is_healthy": True}, "node a  is heard  3 samples, 1 missing"),
        (
            {"is_healthy": False, "has_left": True},
            "node a  has said good-bye  3 samples, 1 missing",
        ),
        ({"is_healthy": False}, "node a  is not heard  3 samples, 1 missing"),
        ({}, "node a  3 samples, 1 missing"),
    ],
)
def test_who_is_heard_is_told_by_a_hub_that_runs(node, line):
    """In a folder without its hub nobody listens."""
    known = {"kind": "node", "node": "a", "samples": 3, "missing": 1}
    told = {"sessions": [], "nodes": [known | node]}
    assert _lines("status", told) == [line]


def test_what_came_twice_is_told(opened):
    """And what was late, or is damaged; nothing is said of none."""
    store = opened()
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    store.commit([batch(1, 3), batch(2, 2)])
    lines = _lines("status", asyncio.run(commands.act("status", {})))
    assert lines[1:] == ["2 samples came twice and are stored once"]


def test_a_cut_of_what_is_not_stored_says_so(opened):
    """It is written all the same: that nothing is known is something."""
    store = opened()
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    told = asyncio.run(commands.act("cut", {"name": "x", "from": 1.6e9, "to": 1.6e9 + 60}))
    first, second = _lines("cut", told)
    assert first.endswith("0 samples, 0 missing")
    assert "nothing is stored of that time" in second


def test_a_cut_ends_now_at_the_latest(opened):
    """Of what comes nothing is known: it would be told as missing."""
    store = opened()
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    told = asyncio.run(commands.act("cut", {"name": "x", "from": -60.0, "to": WALL + 1e6}))
    assert told["until_unix_seconds"] == WALL


def test_times_are_written_as_people_do():
    """Or refused in one line."""
    assert [duration("--x", text) for text in ("500ms", "2s", "1.5m", "2h", "7d")] == [
        0.5, 2.0, 90.0, 7200.0, 604800.0,
    ]  # fmt: skip
    assert time_of("--x", "10m") == -600.0
    assert time_of("--x", "2026-11-25T14:00+00:00") == 1795615200.0
    assert positive("--x", "12") == 12
    for text in ("1970-01-01T00:00+00:00", "1969-12-31T23:00+00:00", "1601-01-01T00:00+00:00"):
        assert 0 < time_of("--x", text) < 1  # what is not above 0 is before now
    for text in ("", "soon", "0", "-3", "1.5"):
        with pytest.raises(UserError, match="--x"):
            positive("--x", text)
    for text in ("", "soon", "5", "-3s", "9" * 400 + "d"):
        with pytest.raises(UserError, match="--x"):
            duration("--x", text)
        if text != "5":
            with pytest.raises(UserError, match="--x"):
                time_of("--x", text)
