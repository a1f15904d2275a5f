"""The hub over HTTP: who may do what, what comes back, and what a wrong client is told."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.recording.foreign import UNITS, IngestAllowance, IngestLimits
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.http import ingest
from hetero_hvd.hub.http.api import EVENTS, HubApi
from hetero_hvd.hub.http.ingest import ForeignIngest
from hetero_hvd.hub.storage.store import NodeBatch, SampleStore
from hetero_hvd.messages import ForeignSampled
from hetero_hvd.run.recordings.frames import read_frames
from hetero_hvd.run.web import event_streams
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.operations import DOCUMENT
from hetero_hvd.run.web.server import HttpEnd, HttpServer
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from tests.hub.test_store import ALL, batch
from tests.hub.tokens import TOKENS, token_files

ELSEWHERE = "https://grafana.lab"


class Client:
    """Asks a hub in this process."""

    def __init__(self, url, store, fleet, commands):
        self.commands = commands
        self.url = url
        self.store = store
        self.fleet = fleet

    async def ask(self, path, body=None, *, role="operate", **headers):
        """Status, content and headers of an answer."""
        return await asyncio.to_thread(self._ask, path, body, role, headers)

    def _ask(self, path, body, role, headers):
        shown = {"Authorization": f"Bearer {TOKENS[role].decode()}"} if role else {}
        data = None if body is None else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, shown | named)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers


@asynccontextmanager
async def api(folder, limits=None):
    """One in this process."""
    now = time.monotonic
    store = SampleStore(folder / "hub", boot="b", clock=now)
    fleet = Fleet(store, now)
    commands = HubCommands(store, fleet)

    async def put(found: NodeBatch):
        return store.commit([found])[0]

    door = ConnectionLimiter("http", 8)
    tokens = token_files(folder / "tokens", *TOKENS)
    access = Access(address="127.0.0.1", origins=(ELSEWHERE,), **tokens)
    samples = ForeignIngest(store, put, now, limits)
    server = HttpServer(HttpEnd(address="127.0.0.1", port=0), door)
    await server.listen(HubApi(access, store, commands, samples, door).app())
    try:
        yield Client(server.url, store, fleet, commands)
    finally:
        await server.close()
        store.close()


def run(folder, act, **more):
    """What comes of a conversation."""

    async def conversation():
        async with api(folder, **more) as client:
            return await act(client)

    return asyncio.run(conversation())


def sent(first=1, count=2, source="chiller", **more):
    """A batch of a program that measures a cooler."""
    now = 1_000_000.0  # whatever its clock shows
    samples = [
        {"at_unix_seconds": now - count + n, "values": {"water_celsius": 20.0 + first + n}}
        for n in range(count)
    ]
    fields = {
        "source": source, "first": first, "sent_at_unix_seconds": now,
        "units": {"water_celsius": "celsius"}, "samples": samples,
    }  # fmt: skip
    return fields | more


MAY = {
    ("/v1/status", None): {"read", "operate"},
    ("/v1/clients", None): {"read", "operate"},
    ("/v1/ingest", "batch"): {"ingest", "operate"},
    ("/v1/sessions", "session"): {"operate"},
}


def test_who_may_do_what(tmp_path):
    """By the token of a role; nobody without one, and no page elsewhere."""

    async def act(client):
        found = {}
        for path, body in MAY:
            allowed = set()
            for number, role in enumerate((None, *TOKENS)):
                content = {"batch": sent(), "session": {"name": f"s{number}"}}.get(body)
                status, told, _ = await client.ask(path, content, role=role)
                assert status in (200, 401), told
                allowed |= {role} if status == 200 else set()
            found[path, body] = allowed
        elsewhere = await client.ask("/v1/sessions", {"name": "x"}, Origin="https://evil.lab")
        known = await client.ask("/v1/sessions", {"name": "y"}, Origin=ELSEWHERE)
        misnamed = await client.ask("/v1/status", Host="evil.lab")
        return found, elsewhere[0], known, misnamed[0]

    found, elsewhere, known, misnamed = run(tmp_path, act)
    assert found == MAY
    assert (elsewhere, known[0], misnamed) == (403, 200, 421)
    assert known[2]["Access-Control-Allow-Origin"] == ELSEWHERE


def test_what_is_sent_twice_is_stored_once(tmp_path):
    """And is in a recording beside what agents tell, at the hub's time."""

    async def act(client):
        await client.ask("/v1/sessions", {"name": "all"}, role="operate")
        first = await client.ask("/v1/ingest", sent(1, 3), role="ingest")
        again = await client.ask("/v1/ingest", sent(2, 3), role="ingest")
        client.store.commit([batch(1, 1)])
        told = await client.ask("/v1/cuts", {"name": "part", "from_unix_seconds": 1})
        latest = await client.ask("/v1/latest?node=chiller", role="read")
        return first[1], again[1], told[1], latest[1], client.store.now_seconds()

    first, again, told, latest, now = run(tmp_path, act)
    assert first == {"next_sequence": 4, "duplicates": 0}
    assert again == {"next_sequence": 5, "duplicates": 2}
    frames = [f for f in read_frames(tmp_path / "hub/recordings/part") if f.node == "chiller"]
    assert [f.recorded.sequence for f in frames] == [1, 2, 3, 4]
    assert isinstance(frames[0].sample, ForeignSampled)
    assert [f.sample.values["water_celsius"] for f in frames] == [21.0, 22.0, 23.0, 24.0]
    assert all(now - 10 < f.at_unix_seconds <= now for f in frames)
    assert latest["items"][0]["sample"]["values"] == {"water_celsius": 24.0}
    assert told["frames"] == 5
    assert main(["export", str(tmp_path / "hub/recordings/part"), "--to", "csv:-"]) == 0


WRONG = {
    "a time in the future": (
        {"samples": [{"at_unix_seconds": 1_000_100.0, "values": {"water_celsius": 1.0}}]},
        "in the future",
    ),
    "a unit that is none": ({"units": {"water_celsius": "gbps"}}, "must be one of"),
    "a name of another unit": ({"units": {"water_celsius": "watts"}}, "must end in _watts"),
    "a rate that is called an amount": ({"units": {"per_second_bytes": "seconds"}}, "must end in"),
    "a value without a unit": ({"units": {}}, "but no unit"),
    "a ratio in percent": (
        {
            "units": {"a_ratio": "ratio"},
            "samples": [{"at_unix_seconds": 1.0, "values": {"a_ratio": 93.0}}],
        },
        "from 0 to 1",
    ),
    "too many series": ({"units": {f"n{n}_celsius": "celsius" for n in range(11)}}, "at most 10"),
    "the name of a node": ({"source": "a"}, "whose agent tells"),
    "a number that is too large": ({"first": 2**53 - 1}, f"must be from 1 to {2**53 - 1}"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_sample_is_told_and_counted(tmp_path, change, words):
    """In one line; nothing of its batch is stored."""

    async def act(client):
        client.store.commit([batch(1, 1)])
        status, told, _ = await client.ask("/v1/ingest", sent() | change, role="ingest")
        _, hub, _ = await client.ask("/v1/status", role="read")
        return status, told["error"], hub["ingest_refused"], client.store.streams().keys()

    status, told, refused, streams = run(tmp_path, act, limits=IngestLimits(max_series=10))
    assert (status, list(refused.values()), list(streams)) == (409, [1], ["s"])
    assert words in told
    assert "\n" not in told


def test_a_series_keeps_its_unit(tmp_path):
    """What was sent before is what is meant, after the hub was started anew too."""
    units = {"water_celsius": "celsius", "a_bytes_per_second": "bytes_per_second"}

    async def ask(client, unit):
        body = sent(units=units | {"water_celsius": unit})
        return (await client.ask("/v1/ingest", body, role="ingest"))[0]

    assert run(tmp_path, lambda client: ask(client, "celsius")) == 200
    statuses = [run(tmp_path, lambda client, unit=unit: ask(client, unit)) for unit in UNITS]
    assert statuses == [200 if unit == "celsius" else 409 for unit in UNITS]


def test_no_name_is_in_two_units():
    """No ending is the end of another one."""
    endings = list(UNITS.values())
    pairs = [(one, other) for one in endings for other in endings if one is not other]
    assert not [pair for pair in pairs if pair[0].endswith(pair[1])]


def test_a_token_has_one_allowance(tmp_path):
    """In whatever way it is shown."""
    limits = IngestLimits(samples_per_second=1.0, burst_seconds=4.0)
    token = TOKENS["ingest"].decode()

    async def act(client):
        found = []
        for number, shown in enumerate(
            (f"Bearer {token}", f"bearer   {token}", f"BEARER {token} ")
        ):
            body = sent(1 + 2 * number)
            answer = await client.ask("/v1/ingest", body, role=None, Authorization=shown)
            found.append(answer[0])
        return found

    assert run(tmp_path, act, limits=limits) == [200, 200, 429]


def test_a_sample_holds_the_units_of_its_own_values(tmp_path):
    """A small request does not become a large journal."""
    units = {f"n{n}_celsius": "celsius" for n in range(1000)}
    samples = [{"at_unix_seconds": 1.0 + n, "values": {"n0_celsius": 1.0}} for n in range(1000)]
    body = sent(units=units, samples=samples)

    async def act(client):
        status, _, _ = await client.ask("/v1/ingest", body, role="ingest")
        return status, [f.recorded.sample for f in client.store.frames(ALL)]

    status, stored = run(tmp_path, act)
    assert (status, len(stored)) == (200, 1000)
    assert sum(map(len, stored)) < 2 * len(msgspec.json.encode(body))
    assert msgspec.msgpack.decode(stored[0])["units"] == {"n0_celsius": "celsius"}


def test_there_are_so_many_sources(tmp_path, monkeypatch):
    """Those that are known may go on, after a restart too."""
    monkeypatch.setattr(ingest, "MAX_SOURCES", 2)

    async def act(client):
        sources = ["a", "b", "c", "a"]
        bodies = [
            sent(units={}, samples=[{"at_unix_seconds": 1.0, "values": {}}], source=name)
            for name in sources
        ]
        return [(await client.ask("/v1/ingest", body, role="ingest"))[0] for body in bodies]

    assert run(tmp_path, act) == [200, 200, 409, 200]
    assert run(tmp_path, act) == [200, 200, 409, 200]


def test_a_session_says_how_long_its_samples_stay(tmp_path):
    """As `record start` does."""
    wanted = {"name": "x", "keep_seconds": 60.0, "keep_bytes": 1000}

    async def act(client):
        found = await client.ask("/v1/sessions", wanted)
        return found[1], (await client.ask("/v1/sessions", wanted | {"keep_bytes": 0}))[0]

    told, refused = run(tmp_path, act)
    assert {name: told[name] for name in wanted} == wanted
    assert refused == 400


def test_who_sends_too_much_waits(tmp_path):
    """He is told for how long, and counted; others are not held up."""
    limits = IngestLimits(samples_per_second=1.0, burst_seconds=4.0)

    async def act(client):
        answers = [await client.ask("/v1/ingest", sent(n), role="ingest") for n in (1, 3, 5)]
        other = await client.ask("/v1/ingest", sent(1, source="pump"), role="operate")
        return [status for status, _, _ in answers], answers[-1], other[0]

    statuses, last, other = run(tmp_path, act, limits=limits)
    assert (statuses, other) == ([200, 200, 429], 200)
    assert int(last[2]["Retry-After"]) >= 1
    assert "wait" in last[1]["error"]


def test_an_allowance_fills_with_time():
    """Up to a burst."""
    bucket = IngestAllowance(limits=IngestLimits(samples_per_second=1.0, burst_seconds=10.0))
    found = [bucket.wait_seconds(5, 0, now) for now in (0.0, 0.0, 0.0, 4.0, 5.0, 1000.0)]
    assert found == [0, 0, 5, 1, 0, 0]


MALFORMED = {
    "no JSON": b"{",
    "another form": {"name": 1},
    "a field that is none": {"name": "x", "nodes": [], "rate": 1},
    "a path": {"name": "../x"},
    "too often": {"name": "x", "every_seconds": 0.001},
    "a line break": {"name": "x\n"},
    "a node with a line break": {"name": "x", "nodes": ["a\n"]},
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_understood_is_told(tmp_path, body):
    """By 400, in words."""

    async def act(client):
        content = msgspec.Raw(body) if isinstance(body, bytes) else body
        return await client.ask("/v1/sessions", content)

    status, told, _ = run(tmp_path, act)
    assert status == 400
    assert told["error"].endswith("; see GET /v1/openapi.json")


def test_lists_come_in_parts(tmp_path):
    """Each item once."""

    async def act(client):
        for number in range(5):
            await client.ask("/v1/sessions", {"name": f"s{number}"})
        found, after = [], ""
        while after is not None:
            _, part, _ = await client.ask(f"/v1/sessions?limit=2&after={after}", role="read")
            found += [each["name"] for each in part["items"]]
            after = part["next"]
        wrong = await client.ask("/v1/sessions?limit=0", role="read")
        stopped = await client.ask("/v1/sessions/s1/stop", {})
        again = await client.ask("/v1/sessions/s1/stop", {})
        _, runs, _ = await client.ask("/v1/runs", role="read")
        return found, wrong[0], stopped, again, runs["items"]

    found, wrong, stopped, again, runs = run(tmp_path, act)
    assert found == [f"s{number}" for number in range(5)]
    assert (wrong, stopped[0], again[0]) == (400, 200, 409)
    assert [(each["id"], each["kind"], each["state"]) for each in runs] == [
        ("recording:s1", "recording", "recorded")
    ]


def test_the_document_is_about_all_there_is(tmp_path):
    """Each path that it names answers, and its references lead somewhere."""

    async def act(client):
        _, document, _ = await client.ask(DOCUMENT, role=None)
        statuses = {}
        for path, methods in document["paths"].items():
            if path == EVENTS:  # it has no end
                continue
            body = {} if "post" in methods and "get" not in methods else None
            asked = path.replace("{name}", "x").replace("{id}", "x")
            statuses[path] = (await client.ask(asked, body))[0]
        return document, statuses

    document, statuses = run(tmp_path, act)
    assert document["openapi"] == "3.1.0"
    told = {int(code) for code in document["paths"]["/v1/cuts"]["post"]["responses"]}
    assert set(statuses.values()) <= told
    assert [path for path, status in statuses.items() if status == 404] == ["/v1/runs/{id}"]
    text = json.dumps(document)
    names = document["components"]["schemas"]
    referred = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred <= names.keys()
    assert {"IngestBatch", "StartSession"} <= names.keys()


def test_a_listener_too_many_is_refused(tmp_path, monkeypatch):
    """With a reason; other questions are answered."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 0)

    async def act(client):
        code, told, _ = await client.ask(EVENTS)
        assert "viewers are connected already" in told["error"]
        return code, (await client.ask("/v1/status"))[0]

    assert run(tmp_path, act) == (503, 200)


def test_news_is_pushed(tmp_path):
    """As server-sent events, when a session begins."""

    async def act(client):
        address = client.url.rpartition(":")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address[2]))
        head = (
            f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {'r' * 20}\r\n\r\n"
        )
        writer.write(head.encode())
        await asyncio.wait_for(reader.readuntil(b"data: "), 10)
        await client.ask("/v1/sessions", {"name": "news"})
        await asyncio.wait_for(reader.readuntil(b'"news"'), 10)
        writer.close()
        return True

    assert run(tmp_path, act)


def test_a_program_is_no_node_that_falls_silent(tmp_path):
    """A hub that is started anew waits for its agents only."""

    async def first(client):
        await client.ask("/v1/ingest", sent(), role="ingest")
        client.store.commit([batch(1, 1)])

    run(tmp_path, first)
    store = SampleStore(tmp_path / "hub", boot="b", clock=time.monotonic)
    try:
        fleet = Fleet(store, iter((0.0, 40.0)).__next__)
        asyncio.run(fleet.look())
        assert [mark.node for mark in store.index.marks(ALL)] == ["a"]
    finally:
        store.close()


CUTS = {"from 1970 on": ({"from_unix_seconds": 0}, 2), "to 1970": ({"to_unix_seconds": 0}, 0)}


@pytest.mark.parametrize(("times", "num_frames"), CUTS.values(), ids=CUTS)
def test_a_time_of_zero_is_1970(tmp_path, times, num_frames):
    """Not now."""

    async def act(client):
        client.store.commit([batch(1, 2, offset=-900.0)])
        return await client.ask("/v1/cuts", {"name": "x"} | times)

    status, told, _ = run(tmp_path, act)
    assert (status, told["frames"]) == (200, num_frames)
