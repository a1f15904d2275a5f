"""Nodes that fall silent are marked from their last sample on, in recordings that it is about."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.storage.index import FleetMark
from tests.hub.test_store import ALL, batch, clocks, opened

__all__ = ["clocks", "opened"]
SECOND = 10**6
MARKS = (
    FleetMark(10 * SECOND, "a", "unhealthy", "is not heard any more"),
    FleetMark(20 * SECOND, "a", "healthy", "is heard again after 40 s"),
    FleetMark(30 * SECOND, "b", "unhealthy", "is not heard any more"),
    FleetMark(60 * SECOND, "", "retention", "session late loses its first samples"),
    FleetMark(70 * SECOND, "b", "healthy", "is heard again after 60 s"),
    FleetMark(80 * SECOND, "a", "unhealthy", "is not heard any more"),
)
SESSIONS = {
    "all of it": ({"name": "all", "begin": 0}, (0, 1, 2, 4, 5)),
    "one that begins as a node is silent": ({"name": "x", "begin": 50}, (2, 4, 5)),
    "one of a node": ({"name": "x", "begin": 50, "nodes": ("a",)}, (5,)),
    "one that loses samples": ({"name": "late", "begin": 50}, (2, 3, 4, 5)),
    "one that ends": ({"name": "x", "begin": 50, "end": 80}, (2, 4)),
    "one that begins with a mark": ({"name": "x", "begin": 70}, (2, 4, 5)),
    "one that begins after all": ({"name": "x", "begin": 90}, (5,)),
}
"""Seconds of a session, and the marks that are of it."""


@pytest.mark.parametrize(("session", "expected"), SESSIONS.values(), ids=SESSIONS)
def test_a_recording_has_the_marks_that_it_is_about(opened, session, expected):
    """Not those of a year before it, nor those of others."""
    store = opened()
    store.index.mark(*MARKS)
    end = session.get("end")
    found = store.index.marks(
        RecordingSession(
            name=session["name"],
            from_microseconds=session["begin"] * SECOND,
            until_microseconds=None if end is None else end * SECOND,
            nodes=session.get("nodes", ()),
        )
    )
    assert found == [MARKS[number] for number in expected]


AWAY = {"the hub has run all the time": 0.0, "the hub was away for an hour": 3600.0}


@pytest.mark.parametrize("seconds", AWAY.values(), ids=AWAY)
def test_a_silent_node_is_marked_from_its_last_sample_on(opened, clocks, seconds):
    """Also where it fell silent while no hub was there."""
    store = opened()
    store.commit([batch(1, 5)])
    last = store.latest["a"].recorded.at_microseconds
    clocks.since_boot += seconds
    fleet = Fleet(store, lambda: clocks.since_boot)
    clocks.since_boot += 31.0
    asyncio.run(fleet.look())
    (mark,) = store.index.marks(ALL)
    assert (mark.at, mark.node, mark.kind) == (last, "a", "unhealthy")


def test_those_that_go_on_are_known(opened):
    """Without a look at thousands that have ended, as each batch asks for them."""
    fleet = Fleet(opened(), lambda: 0.0)
    one, other = (RecordingSession(name=name, from_microseconds=0) for name in ("one", "other"))
    ended = msgspec.structs.replace(one, until_microseconds=SECOND)
    found = []
    for session, is_new in ((one, True), (other, True), (ended, False), (one, False)):
        asyncio.run(fleet.put(session, is_new=is_new))
        found.append({each.name for each in fleet.going_on})
    fleet.forget(["one"])
    found.append({each.name for each in fleet.going_on})
    assert found == [{"one"}, {"one", "other"}, {"other"}, {"one", "other"}, {"other"}]
    assert {each.name for each in Fleet(opened(), lambda: 0.0).going_on} == {"one", "other"}


def test_an_agent_that_is_started_anew_costs_no_job_its_devices(opened, clocks):
    """The queue takes a node for lost once it is silent for long, whatever its agent has said."""
    store = opened()
    store.commit([batch(1, 5)])
    fleet = Fleet(store, lambda: clocks.since_boot)
    fleet.heard("a")
    fleet.left("a")
    assert (fleet.has_left("a"), fleet.lost_nodes()) == (True, [])
    clocks.since_boot += SILENT
    assert fleet.lost_nodes() == ["a"]
    fleet.heard("a")
    assert fleet.lost_nodes() == []


SILENT = 31.0
GOODBYES = {
    "no good-bye": ("hears", [("warning", "is not heard any more")], False),
    "a good-bye": ("hears leaves", [("info", "has said good-bye")], True),
    "a good-bye, and it is back at once": (
        "hears leaves hears",
        [("info", "has said good-bye"), ("info", "is heard again after 0 s"),
         ("warning", "is not heard any more")], False),
    "a good-bye, and it is back later": (
        "hears leaves silent hears",
        [("info", "has said good-bye"), ("info", "is heard again after 31 s"),
         ("warning", "is not heard any more")], False),
    "a good-bye of one of two agents of a name": (
        "hears leaves hears hears",
        [("info", "has said good-bye"), ("info", "is heard again after 0 s"),
         ("warning", "is not heard any more")], False),
    "the hub is started anew at once": (
        "hears leaves look anew", [("info", "has said good-bye")], True),
    "the hub is started anew later": (
        "hears leaves silent anew", [("info", "has said good-bye")], True),
    "the hub ends right after it, and is started anew later": (
        "hears leaves ends anew", [("info", "has said good-bye")], True),
    "the hub ends right after it, and the node is back with the hub": (
        "hears leaves ends anew hears",
        [("info", "has said good-bye"), ("info", "is heard again after 95 s"),
         ("warning", "is not heard any more")], False),
    "the hub ends while the node is there": (
        "hears ends anew", [("warning", "is not heard any more")], False),
}  # fmt: skip


@pytest.mark.parametrize("case", GOODBYES)
def test_nobody_is_warned_of_a_node_that_has_said_good_bye(opened, clocks, caplog, case):
    """It is marked all the same, as nothing is known of it from then on."""
    story, told, has_left = GOODBYES[case]
    caplog.set_level("INFO")
    store = opened()
    store.commit([batch(1, 5)])
    fleet = Fleet(store, lambda: clocks.since_boot)

    def silent():
        clocks.since_boot += SILENT
        asyncio.run(fleet.look())

    for word in story.split():
        if word == "silent":
            silent()
        elif word == "anew":
            fleet = Fleet(store, lambda: clocks.since_boot)
        elif word in {"look", "ends"}:  # as a hub does each second, and as it ends
            asyncio.run(fleet.look())
        else:
            {"hears": fleet.heard, "leaves": fleet.left}[word]("a")
    silent()
    assert [
        (record.levelname.lower(), record.getMessage().removeprefix("node a "))
        for record in caplog.records
        if record.name == "hetero_hvd.hub.fleet"
    ] == told
    assert fleet.has_left("a") == has_left
    marks = [mark.words for mark in store.index.marks(ALL)]
    assert sorted(marks) == sorted(words for _, words in told)
