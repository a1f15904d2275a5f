"""A full disk, of the hub or of an agent, loses nothing that was promised, and is told in words."""

from __future__ import annotations

import asyncio
import secrets

import msgspec
import pytest

from hetero_hvd.core.recording.retention import Retention
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.keeping import StoreKeeping
from hetero_hvd.messages import NodeSampled
from tests.hub.rig import acknowledged, drained, frames_of, sample_until, soon, stored, streaming
from tests.hub.test_store import ALL, batch, clocks, numbers, opened
from tests.kit.small_disk import BALLAST, fill, make_room, missing_for_a_disk, small_disk

__all__ = ["clocks", "opened", "soon"]
pytestmark = pytest.mark.skipif(missing_for_a_disk() is not None, reason="needs root")


@pytest.fixture
def disk(tmp_path):
    """Of the hub, or of an agent."""
    with small_disk(tmp_path / "hub", kilobytes=2048) as folder:
        yield folder


def store_a_batch(store):
    """As an agent sends it."""
    store.commit([batch(4, 20)])


def seal(store):
    """The journal into a segment."""
    store.seal()


def start_a_session(store):
    """As somebody orders it."""
    session = RecordingSession(name="night", from_microseconds=0)
    asyncio.run(Fleet(store, lambda: 0.0).put(session, is_new=True))


def write_a_recording(store):
    """As somebody orders it."""
    order = HubCommands(store, Fleet(store, lambda: 0.0)).act("cut", {"name": "x", "from": 1})
    asyncio.run(order)


WORK = {work.__name__: work for work in (store_a_batch, seal, start_a_session, write_a_recording)}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_what_a_full_disk_does_not_take_is_refused_and_done_later(opened, disk, work):
    """Nothing half-done is left; a hub that is started meanwhile says so in one line."""
    store = opened()
    store.commit([batch(1, 3)])
    fill(disk)
    with pytest.raises((OSError, UserError), match="No space"):
        work(store)
    with pytest.raises(TryAgainError, match="cannot be used: No space"):
        opened()
    make_room(disk)
    store = opened()
    work(store)
    expected = 23 if work is store_a_batch else 3
    assert numbers(store) == list(range(1, expected + 1))
    assert numbers(opened()) == list(range(1, expected + 1))


def test_what_happened_meanwhile_is_noted_when_there_is_room(opened, disk):
    """With the time at which it happened."""
    now = [0.0]
    store = opened()
    store.commit([batch(1, 3)])
    fleet = Fleet(store, lambda: now[0])
    fill(disk)
    now[0] = 40.0
    asyncio.run(fleet.look())
    make_room(disk)
    assert store.index.marks(ALL) == []
    asyncio.run(fleet.look())
    (mark,) = store.index.marks(ALL)
    assert mark.kind == "unhealthy"
    assert mark.at == store.latest["a"].recorded.at_microseconds


def test_old_samples_make_room_on_a_full_disk(opened, disk):
    """Though the index has no room to note that they go."""
    store = opened()
    for first in (1, 101):
        found = batch(first, 100)
        found.batch.samples[:] = [
            msgspec.msgpack.encode(NodeSampled(problems=(secrets.token_hex(400),)))
            for _ in range(100)
        ]
        store.commit([found])
        store.seal()
    fill(disk)
    _, newest = store.index.segments()
    keeping = StoreKeeping(store, Retention(max_bytes=newest.size_bytes), list)
    keeping.look()
    assert (disk / BALLAST).exists()
    assert numbers(store) == list(range(101, 201))
    assert numbers(opened()) == list(range(101, 201))


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("soon")
def test_hub_and_agent_outlive_a_full_disk(tmp_path, disk):
    """The hub's takes nothing, an agent's drops: what is stored and what is missing is exact."""

    async def act(spool):
        async with streaming(tmp_path, 2) as (hub, nodes):
            await acknowledged(nodes)
            fill(disk)
            await sample_until(nodes, lambda: "nothing is acknowledged until" in hub.log)
            fill(spool)
            await sample_until(nodes, lambda: nodes[0].sender.spool.num_dropped > 20)
            make_room(spool)
            make_room(disk)
            await acknowledged(nodes)
            await drained(nodes)
            assert "samples are stored again" in hub.log
            return [node.sampled for node in nodes], nodes[0].sender.spool.num_dropped

    with small_disk(tmp_path / "spool-node0", kilobytes=128) as spool:
        sampled, num_dropped = asyncio.run(act(spool))
    with stored(tmp_path) as store:
        found = frames_of(store)
        missing = {s.node: s.num_missing for s in store.streams().values()}
    assert missing == {"node0": num_dropped, "node1": 0}
    for number, node in enumerate(("node0", "node1")):
        kept = [sampled[number][frame.sequence - 1] for frame in found[node]]
        assert [frame.sample for frame in found[node]] == kept
        assert len(kept) == len(sampled[number]) - missing[node]
        assert msgspec.msgpack.decode(kept[-1])["node"] == node
