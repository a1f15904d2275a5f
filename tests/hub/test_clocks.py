"""Whatever clocks are set to and however long machines sleep, samples are at their time."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from hetero_hvd.agent import hub_sender
from hetero_hvd.probes.kernel.boot_clock import boot_seconds
from tests.fake_clock import library as fake_clock
from tests.hub.rig import SampledNode, acknowledged, drained, frames_of, soon, stored, streaming
from tests.module_clock import give_clock

__all__ = ["soon"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("soon"), pytest.mark.timeout(300)]
HOUR, NIGHT = 3600, 8 * 3600


class NodeClocks:
    """Of the nodes' machines, which are in this process."""

    def __init__(self, monkeypatch):
        self.wall = 0
        self.boot = 0
        give_clock(monkeypatch, hub_sender, time=lambda: time.time() + self.wall)
        monkeypatch.setattr(hub_sender, "boot_seconds", lambda: boot_seconds() + self.boot)

    def set(self, seconds_ago, wall_error):
        """It is so long ago, and the wall clock shows so much more than that."""
        self.boot = -seconds_ago
        self.wall = wall_error - seconds_ago


CHANGES = {
    "the hub's wall clock is set back an hour": ((-HOUR, 0), (0, 0), 0),
    "the hub's wall clock is set forward an hour": ((HOUR, 0), (0, 0), 0),
    "the nodes' wall clocks are set back an hour": ((0, 0), (-HOUR, 0), 0),
    "all machines sleep for a night": ((NIGHT, NIGHT), (NIGHT, NIGHT), NIGHT),
    "a node's machine stands still for an hour": ((0, 0), (-HOUR, -HOUR), 0),
}
"""What the clocks of the hub and the nodes show more, wall and since boot; and the gap to be."""


@pytest.mark.parametrize(("hubs", "nodes", "gap"), CHANGES.values(), ids=CHANGES)
def test_no_sample_moves(tmp_path, monkeypatch, hubs, nodes, gap):
    """While all run, and when the hub is killed and starts anew."""
    shifts = tmp_path / "shifts"
    shifts.write_text("0 0")
    clocks = NodeClocks(monkeypatch)
    environment = fake_clock.environment(fake_clock.build(tmp_path), shifts)

    async def act():
        async with streaming(tmp_path, 2, environment=environment) as (hub, found):
            await acknowledged(found)
            await drained(found)
            shifts.write_text(f"{hubs[0]} {hubs[1]}")
            clocks.wall, clocks.boot = nodes
            told = (await hub.order("status"))["now_unix_seconds"]
            await acknowledged(found)
            hub.kill()
            hub.start()
            await acknowledged(found)
            await drained(found)
            return [node.sampled for node in found], told

    began = time.time()
    sampled, told = asyncio.run(act())
    took = time.time() - began
    assert -1 < told - began - gap < took + 1
    gap = max(gap, hubs[0])  # a wall clock that is ahead is believed by the next hub
    with stored(tmp_path) as store:
        frames = frames_of(store)
    for number, node in enumerate(("node0", "node1")):
        assert [frame.sample for frame in frames[node]] == sampled[number]
        times = [frame.at_microseconds / 1e6 for frame in frames[node]]
        steps = sorted(b - a for a, b in pairwise(times))
        assert steps[0] > 0
        assert steps[-2] < took
        assert gap <= steps[-1] < gap + took


REBOOTS = {
    "right": ((60, 0), (50, 0)),
    "set-back-an-hour": ((60, HOUR), (50, 0)),
    "set-forward-an-hour": ((60, -HOUR), (50, 0)),
    "not-set-at-boot": ((60, -1e9), (50, 0)),
    "asleep-for-a-night": ((NIGHT, 0), (50, 0)),
}
"""How long ago samples are taken, and what the wall clock shows more than is true; then the machine
boots anew, before a hub has heard of them."""


def test_after_a_reboot_the_wall_clock_that_was_shown_last_counts(tmp_path, monkeypatch):
    """Samples that no hub has are at their time, whatever the wall clock showed as they began."""
    clocks = NodeClocks(monkeypatch)

    async def act():
        taken = {}
        monkeypatch.setattr(hub_sender, "boot_id", lambda: "first")
        for name, moments in REBOOTS.items():
            node = SampledNode(name, tmp_path, None)
            for moment in moments:
                clocks.set(*moment)
                for _ in range(3):
                    taken.setdefault(name, []).append(time.time() - moment[0])
                    node.sample()
            await node.close()
        clocks.set(0, 0)
        monkeypatch.setattr(hub_sender, "boot_id", lambda: "second")
        async with streaming(tmp_path, 0) as (hub, nodes):
            nodes += [SampledNode(name, tmp_path, hub.target) for name in REBOOTS]
            await drained(nodes)
        return taken

    taken = asyncio.run(act())
    with stored(tmp_path) as store:
        for name, frames in frames_of(store).items():
            times = [frame.at_microseconds / 1e6 for frame in frames]
            assert times == pytest.approx(taken.pop(name), abs=1.0), name
    assert taken == {}
