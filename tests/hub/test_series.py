"""A figure over time, as the hub tells it: every extreme, every gap, and what cannot be asked."""

from __future__ import annotations

import re
import urllib.parse
from itertools import pairwise

import msgspec
import pytest

from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.storage.index import HEALTHY, UNHEALTHY, FleetMark
from hetero_hvd.messages import DeviceSample, NodeSampled
from tests.hub.test_api import run, sent
from tests.hub.test_store import ALL, batch


def sampled(first, count, *, value=float, **more):
    """A batch of a node with two GPUs, one sample a second; use is that of its number."""
    found = batch(first, count, **more)
    found.batch.samples[:] = [
        msgspec.msgpack.encode(
            NodeSampled(
                node="a",
                cpu_use_ratio=value(n) / 2,
                devices=tuple(DeviceSample(index=i, use_ratio=value(n) + i) for i in (1, 3)),
            )
        )
        for n in range(first, first + count)
    ]
    return found


async def asked(client, figure="use_ratio", **more):
    """Status and answer."""
    now = client.store.now_seconds()
    query = (
        {"node": "a", "figure": figure, "from": now - 2000, "to": now + 10}
        | {"points": 4000}
        | more
    )
    query = {name: value for name, value in query.items() if value is not None}
    status, told, _ = await client.ask(f"/v1/series?{urllib.parse.urlencode(query)}", role="read")
    return status, told


def aligned(client, seconds):
    """What a node's clock is to show less, so that its first sample is so many seconds ago."""
    return client.store.now_seconds() - 901.0 - seconds


def test_what_is_sealed_and_what_is_not_is_one_line(tmp_path):
    """By device; where nothing is known, there is a null, of all devices at once."""

    async def act(client):
        offset = aligned(client, 1000)
        client.store.commit([sampled(1, 10, offset=offset)])
        client.store.seal()
        client.store.commit([sampled(11, 5, offset=offset), sampled(30, 3, offset=offset)])
        client.store.commit([batch(1, 5, stream="t", node="b", offset=offset)])
        return (
            await asked(client),
            await asked(client, "cpu_use_ratio"),
            await asked(client, device=3),
        )

    (status, told), (_, of_node), (_, alone) = run(tmp_path, act)
    assert status == 200
    values = [*map(float, range(1, 16)), None, 30.0, 31.0, 32.0]
    assert {each["device"]: each["values"] for each in told["series"]} == {
        "1": [None if v is None else v + 1 for v in values],
        "3": [None if v is None else v + 3 for v in values],
    }
    times = told["at_unix_seconds"]
    assert [round(b - a) for a, b in pairwise(times)][-4:] == [8, 8, 1, 1]
    assert len(times) == len(values)
    assert [each["device"] for each in of_node["series"]] == ["node"]
    assert [each["device"] for each in alone["series"]] == ["3"]
    assert {"use_ratio", "power_watts", "cpu_use_ratio", "load"} <= set(told["figures"])
    assert told["unhealthy"] == []


def test_each_pixel_has_its_extremes(tmp_path):
    """A peak of one sample in half an hour is seen, sealed or not."""

    async def act(client):
        offset = aligned(client, 1900)
        client.store.commit(
            [sampled(1, 1800, offset=offset, value=lambda n: 9.0 if n == 777 else n % 7 / 10)]
        )
        end = client.store.now_seconds()
        window = {"from": end - 2000, "to": end, "points": 50}
        before = await asked(client, **window)
        client.store.seal()
        return before, await asked(client, **window)

    (_, before), (_, after) = run(tmp_path, act)
    found = after["series"][0]["values"]
    assert (max(found), min(found)) == (10.0, 1.0)
    assert len(found) <= 100
    assert found.count(10.0) == 1
    assert before["series"] == after["series"]


def test_what_a_program_tells_is_a_line_too(tmp_path):
    """However seldom it tells it, and among all that it has told, sealed or not."""

    def told(number, **values):
        at = 1_000_000.0 - 20 + number
        units = {name: name.rpartition("_")[2] for name in values}
        return sent(number, units=units, samples=[{"at_unix_seconds": at, "values": values}])

    bodies = [told(number, water_celsius=20.0 + number) for number in range(1, 8)]
    bodies[3] = told(4, a_watts=7.0)
    del bodies[5]

    async def act(client):
        for body in bodies:
            await client.ask("/v1/ingest", body, role="ingest")
        waiting = await asked(client, "water_celsius", node="chiller")
        client.store.seal()
        return waiting, await asked(client, "water_celsius", node="chiller")

    for _, found in run(tmp_path, act):
        (line,) = found["series"]
        assert line["values"] == [21, 22, 23, 25, None, 27], "only the sixth is lost"
        assert found["figures"] == ["a_watts", "water_celsius"]


MARKS = {
    "silent for a while": ([(40, UNHEALTHY), (30, HEALTHY)], [(40, 30)]),
    "silent still": ([(40, UNHEALTHY)], [(40, 0)]),
    "told again by the next hub": ([(40, UNHEALTHY), (35, UNHEALTHY), (30, HEALTHY)], [(40, 30)]),
    "before": ([(9000, UNHEALTHY), (8000, HEALTHY)], []),
    "from before": ([(9000, UNHEALTHY), (10, HEALTHY)], [(2000, 10)]),
    "something else": ([(40, "retention")], []),
}


@pytest.mark.parametrize(("marks", "expected"), MARKS.values(), ids=MARKS)
def test_when_a_node_was_not_heard_is_told(tmp_path, marks, expected):
    """Seconds ago."""

    async def act(client):
        client.store.commit([sampled(1, 3, offset=aligned(client, 60))])
        now = client.store.now_microseconds()
        client.store.index.mark(
            *(FleetMark(now - ago * 10**6, "a", kind, "") for ago, kind in marks)
        )
        return await asked(client), now / 1e6

    (_, told), now = run(tmp_path, act)
    assert [(round(now - a), round(now - b)) for a, b in told["unhealthy"]] == expected


WRONG = {
    "a long node": ({"node": "a" * 65}, "node"),
    "no figure": ({"figure": None}, "figure"),
    "a figure that is none": ({"figure": "use ratio"}, "figure"),
    "a device that is none": ({"device": "gpu0"}, "device"),
    "no begin": ({"from": None}, "from"),
    "a begin that is no number": ({"from": "x"}, "from"),
    "a begin that is not a number": ({"from": "nan"}, "from"),
    "a begin before 1970": ({"from": -1}, "from"),
    "an end without end": ({"to": "inf"}, "to"),
    "no pixels": ({"points": 0}, "points"),
    "too many pixels": ({"points": 100_000}, "points"),
    "half a pixel": ({"points": 0.5}, "points"),
    "what is not known": ({"every": 1}, "every"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_asked_is_told(tmp_path, change, words):
    """In one line that names it."""

    async def act(client):
        client.store.commit([sampled(1, 1, offset=aligned(client, 9))])
        return await asked(client, **change)

    status, told = run(tmp_path, act)
    assert status == 400
    assert words in told["error"]
    assert "\n" not in told["error"]


@pytest.mark.parametrize("end", [8, 9])
def test_a_time_that_ends_before_it_begins_is_told(tmp_path, end):
    """As of a cut."""

    async def act(client):
        client.store.commit([sampled(1, 1, offset=aligned(client, 9))])
        return await asked(client, **{"from": 9, "to": end})

    assert run(tmp_path, act) == (409, {"error": "`from` must be before `to`"})


@pytest.mark.parametrize("node", [None, "z", "../a"])
def test_a_node_that_nobody_knows_is_not_found(tmp_path, node):
    """In words, as what is there is another question."""

    async def act(client):
        client.store.commit([sampled(1, 1, offset=aligned(client, 9))])
        return await asked(client, node=node)

    status, told = run(tmp_path, act)
    assert status == 404
    assert "nothing of it is stored; GET /v1/clients lists all" in told["error"]


def test_a_piece_that_is_damaged_is_a_gap(tmp_path):
    """The rest of the line is there."""

    async def act(client):
        offset = aligned(client, 1000)
        for first in (1, 11, 21):
            client.store.commit([sampled(first, 10, offset=offset)])
            client.store.seal()
        path = sorted((client.store.folder / "segments").iterdir())[1]
        path.write_bytes(b"x" * path.stat().st_size)
        return await asked(client)

    status, told = run(tmp_path, act)
    assert status == 200
    values = told["series"][0]["values"]
    assert values == [*(n + 1.0 for n in range(1, 11)), None, *(n + 1.0 for n in range(21, 31))]


def test_the_next_hub_knows_who_was_silent(tmp_path):
    """So that its time of silence ends when it is heard again, and is marked once."""

    async def act(client):
        client.store.commit([sampled(1, 3, offset=aligned(client, 60))])
        now = [0.0]
        await Fleet(client.store, lambda: now[0]).look()
        first = Fleet(client.store, lambda: now[0])
        now[0] = 40.0
        await first.look()
        second = Fleet(client.store, lambda: now[0])
        is_healthy = second.health.is_healthy("a")
        now[0] = 45.0
        await second.look()
        second.heard("a")
        await second.look()
        return is_healthy, client.store.index.marks(ALL)

    is_healthy, marks = run(tmp_path, act)
    assert not is_healthy
    assert [mark.kind for mark in marks] == [UNHEALTHY, HEALTHY]
    seconds = int(re.search(r"again after (\d+) s", marks[1].words)[1])
    assert 58 + 5 <= seconds < 58 + 5 + 60  # since its last sample, 58 s before the first hub
