"""The hub's port: who is served, who is told why not."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from hetero_hvd.cli.record.record import _lines
from hetero_hvd.discovery import hub_link as link
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.server import HubServer
from hetero_hvd.hub.storage.store import SampleStore
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.run.recordings.frames import read_frames
from hetero_hvd.security.cluster_tls import for_driver, for_hubs_client
from tests.hub.rig import SampledNode, sample_until

KEY = bytes(range(32))
OURS = for_hubs_client(KEY)


@asynccontextmanager
async def hub(folder):
    """One in this process; its port."""
    now = asyncio.get_running_loop().time
    store = SampleStore(folder / "hub", boot="b", clock=now)
    fleet = Fleet(store, now)
    server = HubServer(KEY, store, fleet, HubCommands(store, fleet).act)
    try:
        yield server, await server.listen("127.0.0.1", 0)
    finally:
        await server.close()
        store.close()


async def converse(folder, *frames, tls=OURS):
    """Say something after the other; the hub's answers, and how many it has refused."""
    answers = []
    async with hub(folder) as (server, port):
        with suppress(ConnectionClosed, InvalidMessage, OSError):
            url = f"wss://127.0.0.1:{port}{link.PATH}"
            async with connect(url, ssl=tls.context, server_hostname=tls.name, proxy=None) as ours:
                for frame in frames:
                    await ours.send(frame if isinstance(frame, bytes | str) else link.encode(frame))
                    answers.append(link.decode(await ours.recv()))
        await asyncio.sleep(0)
        return answers, server.refused


SAMPLE = msgspec.msgpack.encode(NodeSampled(node="a", load=1.0))


def hello(protocol=link.PROTOCOL, oldest=link.OLDEST_PROTOCOL, node="a"):
    """The first frame."""
    return link.Hello(protocol=protocol, oldest_protocol=oldest, version="9.9", node=node)


def batch(**more):
    """Of one sample."""
    fields = {
        "stream": "s", "first": 1, "times_seconds": [0.0], "samples": [SAMPLE],
        "offset_seconds": 0.0, "uncertainty_seconds": 0.0,
    } | more  # fmt: skip
    return link.SampleBatch(**fields)


LATER, LATEST = link.PROTOCOL + 1, link.PROTOCOL + 2
VERSIONS = {
    "the same": (hello(), ""),
    "a later one that still speaks ours": (hello(LATER, link.PROTOCOL), ""),
    "a later agent that does not": (
        hello(LATEST, LATER), "the agent of a speaks .*: upgrade the hub",
    ),
    "a later command that does not": (
        hello(LATEST, LATER, node=""), "who asks speaks .*: upgrade the hub",
    ),
    "one that is too old": (hello(link.OLDEST_PROTOCOL - 1, 0), "upgrade where that runs"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "words"), VERSIONS.values(), ids=VERSIONS)
def test_neighbouring_versions_are_served(tmp_path, first, words):
    """Others are told which end to upgrade."""
    (answer, *_), refused = asyncio.run(converse(tmp_path, first))
    if words:
        assert re.search(words, answer.words)
        assert refused == 1
    else:
        assert (answer.protocol, refused) == (link.PROTOCOL, 0)


def test_what_a_later_version_adds_is_passed_over(tmp_path):
    """A field that this hub does not know."""
    sample = msgspec.msgpack.decode(SAMPLE) | {"later_watts": 1.0}
    sample["devices"] = [{"index": 3, "later_ratio": 0.5}]
    content = msgspec.msgpack.encode(sample)
    known = msgspec.msgpack.decode(link.encode(batch(samples=[content])))
    later = msgspec.msgpack.encode(known | {"later": 1})
    order = link.HubCommand(name="cut", arguments={"name": "x", "from": -2e9})
    (_, answer), _ = asyncio.run(converse(tmp_path, hello(), later))
    assert answer.next_sequence == 2
    (_, told), _ = asyncio.run(converse(tmp_path, hello(node=""), order))
    (frame,) = read_frames(Path(told.result["folder"]))
    assert frame.recorded.sample == content
    known = NodeSampled(node="a", load=1.0, devices=(DeviceSample(index=3),))
    assert repr(frame.sample) == repr(known)  # NaN is not equal to itself


NONSENSE = {
    "no hello": (batch(),),
    "noise": (b"\xc1",),
    "text": ("text",),
    "a name that is a path": (hello(node="../x"),),
    "a batch with too few times": (hello(), batch(times_seconds=[])),
    **{
        f"a time that is none: {time}": (hello(), batch(times_seconds=[time]))
        for time in (float("inf"), float("nan"), 1e305, -1e12)
    },
    "an offset that is none": (hello(), batch(offset_seconds=1e308)),
    **{
        f"a number that is none: {number}": (hello(), batch(first=number))
        for number in (-1, 0, 2**53, 2**63, 2**64 - 1)
    },
    **{
        f"dropped ones that are none: {first} to {last}": (
            hello(),
            batch(dropped=[link.Dropped("s", first, last)]),
        )
        for first, last in ((0, 5), (9, 5), (1, 2**63), (-5, -1))
    },
    "a stream without a name": (hello(), batch(stream="")),
    "a stream with a long name": (hello(), batch(stream="s" * 101)),
    "dropped ones of a stream without a name": (
        hello(),
        batch(dropped=[link.Dropped("", 1, 1)]),
    ),
    "a sample that is none": (hello(), batch(samples=[b"\x80"])),
    "a sample with a device that is none": (
        hello(),
        batch(samples=[msgspec.msgpack.encode({"type": "NodeSampled", "devices": [1]})]),
    ),
    "a command of an agent": (hello(), link.HubCommand(name="status", arguments={})),
    "a batch of a command": (hello(node=""), batch()),
}


@pytest.mark.parametrize("frames", NONSENSE.values(), ids=NONSENSE)
def test_who_says_something_else_is_told(tmp_path, frames):
    """And stores nothing."""
    answers, _ = asyncio.run(converse(tmp_path, *frames))
    assert isinstance(answers[-1], link.HubRefusal)
    assert answers[-1].words


ORDERS = {
    "unknown": ("dance", {}, "no command"),
    "a session without a name": ("start", {}, "not understood"),
    "a session that is not there": ("stop", {"name": "x"}, "none of that name"),
    "which session": ("stop", {}, "say which"),
    "a part of the future": ("cut", {"name": "x", "from": 2e11}, "begins in the future"),
    "a path": ("start", {"name": "../x"}, "must be letters"),
    "a node that is none": ("start", {"name": "x", "nodes": ["../x"]}, "name must be"),
    "a time that is none": ("cut", {"name": "x", "from": "soon"}, "not understood"),
    "backwards": ("cut", {"name": "x", "from": -1, "to": -9}, "before it begins"),
    "after 9999": ("start", {"name": "x", "from": 1e12}, "from 1970 to 9999"),
    "a time without end": ("cut", {"name": "x", "from": -float("inf")}, "not understood"),
    "more bytes than there are": ("start", {"name": "x", "keep_bytes": 2**63}, "at most"),
    "seconds that never end": ("start", {"name": "x", "keep_seconds": float("inf")}, "at most"),
    "a time that no file holds": ("cut", {"name": "x", "to": 1e18}, "from 1970 to 9999"),
}


@pytest.mark.parametrize(("name", "arguments", "words"), ORDERS.values(), ids=ORDERS)
def test_a_wrong_order_is_one_line(tmp_path, name, arguments, words):
    """That says what is wrong."""
    order = link.HubCommand(name=name, arguments=arguments)
    (_, answer), _ = asyncio.run(converse(tmp_path, hello(node=""), order))
    assert words in answer.words
    assert "\n" not in answer.words


def test_a_name_is_given_once(tmp_path):
    """Sessions are kept by it."""
    order = link.HubCommand(name="start", arguments={"name": "x"})
    (_, first, second), _ = asyncio.run(converse(tmp_path, hello(node=""), order, order))
    assert first.result["name"] == "x"
    assert "already" in second.words


UNHEARD = {
    "all nodes": ([], []),
    "a node that is heard": (["a"], []),
    "a node that nobody has heard of": (["a", "typo"], ["typo"]),
}


@pytest.mark.parametrize(("nodes", "silent"), UNHEARD.values(), ids=UNHEARD)
def test_who_is_not_heard_is_named(tmp_path, nodes, silent):
    """At the start, when a wrong name can still be mended, and at the end."""
    asked = {"name": "x", "nodes": nodes}
    orders = [link.HubCommand(name=name, arguments=asked) for name in ("start", "stop")]
    asyncio.run(converse(tmp_path, hello(), batch()))
    (_, *answers), _ = asyncio.run(converse(tmp_path, hello(node=""), *orders))
    assert [answer.result["silent"] for answer in answers] == [silent, silent]


STARTED = {"slow": {"every_seconds": 5.0}, "fast": {"every_seconds": 0.5, "nodes": ["a"]}}
RATES = {
    "none goes on": ((), {"a": 1.0, "b": 1.0}),
    "one of all nodes": (("slow",), {"a": 5.0, "b": 5.0}),
    "a faster one of some": (("slow", "fast"), {"a": 0.5, "b": 5.0}),
    "the faster one has ended": (("slow", "fast", "stop"), {"a": 5.0, "b": 5.0}),
}


@pytest.mark.parametrize(("orders", "rates"), RATES.values(), ids=RATES)
def test_the_fastest_session_of_a_node_sets_its_rate(tmp_path, orders, rates):
    """Told at the welcome, and with each batch: a session that begins holds from then on."""
    asked = [
        link.HubCommand(name="stop", arguments={"name": "fast"})
        if name == "stop"
        else link.HubCommand(name="start", arguments={"name": name} | STARTED[name])
        for name in orders
    ]
    asyncio.run(converse(tmp_path, hello(node=""), *asked))
    for node, seconds in rates.items():
        answers, _ = asyncio.run(converse(tmp_path, hello(node=node), batch(stream=node)))
        assert [answer.every_seconds for answer in answers] == [seconds, seconds]


STRANGERS = {"another key": for_hubs_client(bytes(32)), "a driver's name": for_driver(bytes(32))}


@pytest.mark.parametrize("tls", STRANGERS.values(), ids=STRANGERS)
def test_who_does_not_hold_the_key_gets_nothing(tmp_path, tls):
    """Not even a refusal."""
    answers, _ = asyncio.run(converse(tmp_path, hello(), tls=tls))
    assert answers == []


def test_a_hub_that_cannot_store_ends(tmp_path, monkeypatch):
    """It says why, and waits for nobody who waits for it."""

    def defect(_store, _batches):
        raise ArithmeticError("a defect")

    monkeypatch.setattr(SampleStore, "commit", defect)

    async def ends():
        async with hub(tmp_path) as (server, port):
            url = f"wss://127.0.0.1:{port}{link.PATH}"
            async with connect(url, ssl=OURS.context, server_hostname=OURS.name, proxy=None) as its:
                await its.send(link.encode(hello()))
                await its.recv()
                await its.send(link.encode(batch()))
                with pytest.raises(ConnectionClosed):
                    await its.recv()
            with pytest.raises(ArithmeticError, match="a defect"):
                server.look()

    with pytest.raises(ArithmeticError, match="a defect"):
        asyncio.run(asyncio.wait_for(ends(), 20))


TURNS = {
    "two agents take turns": ("abab", True),
    "one comes again, as its link was cut": ("aabb", False),
    "nodes of two names": ("aca", False),
}


@pytest.mark.parametrize(("turns", "is_told"), TURNS.values(), ids=TURNS)
def test_two_agents_of_one_name_are_told(tmp_path, caplog, turns, is_told):
    """Once: their samples are mixed. The status tells it as long as it is so."""
    nodes = {"a": "a", "b": "a", "c": "c", "": ""}

    async def converses():
        async with hub(tmp_path) as (_, port), AsyncExitStack() as open_ones:
            url = f"wss://127.0.0.1:{port}{link.PATH}"
            links = {}
            for who, node in nodes.items():
                links[who] = await open_ones.enter_async_context(
                    connect(url, ssl=OURS.context, server_hostname=OURS.name, proxy=None)
                )
                await links[who].send(link.encode(hello(node=node)))
                await links[who].recv()
            for number, who in enumerate(turns, 1):
                await links[who].send(link.encode(batch(stream=who, first=number)))
                assert isinstance(link.decode(await links[who].recv()), link.Stored)
            await links[""].send(link.encode(link.HubCommand(name="status", arguments={})))
            return link.decode(await links[""].recv()).result

    status = asyncio.run(converses())
    assert caplog.text.count("two agents of that name") == is_told
    (line,) = [each for each in _lines("status", status) if each.startswith("node a ")]
    assert ("two agents send by this name" in line) == is_told


@pytest.mark.parametrize("is_in_order", [True, False])
def test_an_agent_that_ends_in_order_says_good_bye(tmp_path, is_in_order):
    """One whose connection just ends may be back at once: nothing was said."""

    async def act():
        async with hub(tmp_path) as (server, port):
            node = SampledNode("a", tmp_path, AnnounceTarget("127.0.0.1", port))
            await sample_until([node], lambda: node.sender.num_sent)
            said = []
            server._fleet.left = said.append
            if is_in_order:
                await node.close()
                return said
            (connection,) = server._senders.values()
            connection.transport.abort()
            await connection.wait_closed()
            heard = said.copy()
            await node.close()
            return heard

    assert asyncio.run(act()) == (["a"] if is_in_order else [])
