"""Two hubs of one key, and a crowd of agents that comes back at once: who has what is known."""

from __future__ import annotations

import asyncio
import time

import pytest

from hetero_hvd.agent.hub_sender import HubSender
from hetero_hvd.messages import NodeSampled
from hetero_hvd.security.descriptors import raise_limit
from tests.hub.rig import (
    KEY,
    HubProcess,
    SampledNode,
    acknowledged,
    drained,
    frames_of,
    sample_for,
    soon,
    stored,
)

__all__ = ["soon"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.usefixtures("soon")
def test_what_two_hubs_have_is_what_was_sampled(tmp_path, caplog):
    """A node that goes over to another hub leaves what the first one has there, and says so."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()

    async def act():
        hubs = [HubProcess(folder) for folder in folders]
        hubs[0].start()
        node = SampledNode("node0", tmp_path, hubs[0].target)
        try:
            await acknowledged([node])
            hubs[0].kill()
            await sample_for([node], 0.2)
            hubs[1].start()
            node.target = hubs[1].target
            await acknowledged([node])
            await drained([node])
            return node.sampled
        finally:
            await node.close()
            for hub in hubs:
                if hub.process is not None:
                    hub.kill()

    sampled = asyncio.run(act())
    found, missing = [], []
    for folder in folders:
        with stored(folder) as store:
            found.append(frames_of(store)["node0"])
            missing += [state.num_missing for state in store.streams().values()]
    first, second = found
    told = [record.message for record in caplog.records if "from now on" in record.message]
    assert len(told) == 1
    assert second[0].sequence <= first[-1].sequence + 1
    assert missing == [0, second[0].sequence - 1]
    numbers = sorted({frame.sequence for frame in first + second})
    assert numbers == list(range(1, len(sampled) + 1))
    assert all(frame.sample == sampled[frame.sequence - 1] for frame in first + second)


CROWDS = [
    pytest.param(50, id="50 agents"),
    pytest.param(1000, id="1000 agents", marks=[pytest.mark.matrix, pytest.mark.timeout(600)]),
]


@pytest.mark.parametrize("number", CROWDS)
def test_a_crowd_comes_back_at_once(tmp_path, number):
    """After the hub was killed, with the usual times between two tries: all of it is stored."""
    raise_limit()
    longest_seconds = 120 + number / 4

    async def act():
        hub = HubProcess(tmp_path)
        hub.start()
        await hub.order("status")

        async def find(_preferred):
            return hub.target

        crowd = [HubSender(KEY, f"n{n}", find, tmp_path / f"n{n}") for n in range(number)]
        tasks = [asyncio.create_task(sender.send()) for sender in crowd]
        try:
            take(crowd)
            await all_sent(crowd, 1, longest_seconds)
            hub.kill()
            for _ in range(3):
                take(crowd)
            hub.start()
            began = time.monotonic()
            await all_sent(crowd, 4, longest_seconds)
            return time.monotonic() - began
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for sender in crowd:
                sender.close()
            hub.kill()

    assert asyncio.run(act()) < longest_seconds
    with stored(tmp_path) as store:
        states = store.streams().values()
        assert {(state.num_samples, state.num_missing) for state in states} == {(4, 0)}
        assert {state.node for state in states} == {f"n{n}" for n in range(number)}


def take(crowd):
    """One sample of each."""
    for sender in crowd:
        sender.take(NodeSampled(load=1.0, at_unix_seconds=time.time()))


async def all_sent(crowd, count, seconds):
    """Wait until the hub has so many samples of each."""
    deadline = time.monotonic() + seconds
    while any(sender.num_sent < count for sender in crowd):
        assert time.monotonic() < deadline, [sender.num_sent for sender in crowd]
        await asyncio.sleep(0.1)
