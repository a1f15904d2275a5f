"""Nothing is lost between a node's sampler and an exported recording, whatever fails on the way."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from hetero_hvd.run.recordings.frames import read_frames
from tests.hub.rig import (
    CutLink,
    HubProcess,
    SampledNode,
    acknowledged,
    drained,
    frames_of,
    sample_for,
    slice_of,
    stored,
    while_sampling,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@asynccontextmanager
async def cluster(tmp_path, num_nodes=3, **more):
    """A hub and nodes that reach it over a link."""
    hub = HubProcess(tmp_path)
    hub.start()
    link = CutLink(hub.port)
    target = await link.open()
    nodes = [SampledNode(f"node{n}", tmp_path, target, **more) for n in range(num_nodes)]
    try:
        yield hub, link, nodes
    finally:
        for node in nodes:
            await node.close()
        await link.close()
        hub.kill()


NUM_FAULTS = 6


def test_what_is_exported_is_what_was_sampled(tmp_path):
    """Three nodes; the hub is killed four times, the link is cut twice; sessions overlap."""

    async def act():
        async with cluster(tmp_path) as (hub, link, nodes):
            await sample_for(nodes, 0.5)
            await hub.order("start", name="first")
            for number in range(NUM_FAULTS):
                await acknowledged(nodes)
                await sample_for(nodes, 0.2 * random.random())  # noqa: S311 - a time
                if number % 3 == 2:
                    link.cut()
                    await sample_for(nodes, 0.2)
                    link.mend()
                else:
                    hub.kill()
                    hub.start()
                if number == 2:
                    await hub.order("start", name="second", nodes=["node1"])
            first = await while_sampling(nodes, hub.order("stop", name="first"))
            second = await while_sampling(nodes, hub.order("stop", name="second"))
            await drained(nodes)
            assert (hub.num_kills, link.num_cuts) == (4, 2)
            return [node.sampled for node in nodes], first, second

    sampled, first, second = asyncio.run(act())
    with stored(tmp_path) as store:
        found = frames_of(store)
        assert [[each.sample for each in found[f"node{n}"]] for n in range(3)] == sampled
        numbers = [[each.sequence for each in frames] for frames in found.values()]
        assert numbers == [list(range(1, len(each) + 1)) for each in sampled]
        assert all(state.num_missing == 0 for state in store.streams().values())
        for told in (first, second):
            (session,) = (s for s in store.index.sessions() if s.name == told["name"])
            cut = list(read_frames(tmp_path / told["folder"]))
            part = slice_of(found, session)
            assert [(frame.node, frame.recorded) for frame in cut] == part
            assert part
            assert told["missing"] == 0
        assert len({frame.node for frame in read_frames(tmp_path / second["folder"])}) == 1


def test_beyond_the_spool_the_oldest_are_missing_and_counted(tmp_path):
    """While the hub is away; exactly, by their numbers."""

    async def act():
        async with cluster(tmp_path, 1, max_bytes=2**16) as (hub, _, nodes):
            await sample_for(nodes, 0.2)
            await hub.order("status")
            await drained(nodes)
            before = len(nodes[0].sampled)
            hub.kill()
            for _ in range(300):
                nodes[0].sample()
            assert nodes[0].sender.spool.num_dropped > 0
            hub.start()
            await drained(nodes)
            return before, nodes[0].sampled, nodes[0].sender.spool.num_dropped

    before, sampled, num_dropped = asyncio.run(act())
    with stored(tmp_path) as store:
        found = frames_of(store)["node0"]
        kept = sampled[:before] + sampled[before + num_dropped :]
        assert [each.sample for each in found] == kept
        (state,) = store.streams().values()
        assert (state.num_samples, state.num_missing) == (len(kept), num_dropped)
        ((gap,),) = store.missing().values()
        assert tuple(gap) == (before + 1, before + num_dropped)
