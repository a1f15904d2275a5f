"""A hub is killed between any two of its steps: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hetero_hvd.errors import TryAgainError
from hetero_hvd.run.recordings.frames import read_frames
from tests.hub.rig import (
    ALL,
    acknowledged,
    drained,
    frames_of,
    sample_until,
    soon,
    stored,
    streaming,
)

__all__ = ["soon"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("soon"), pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("doomed_hub.py"))
POINTS = {
    "while a batch is written": ("hetero_hvd.hub.storage.journal:os.pwrite", "half", 2),
    "after the flush, before it is acknowledged": (
        "hetero_hvd.hub.storage.journal:os.fdatasync", "after", 2,
    ),
    "while a segment is made": ("hetero_hvd.hub.storage.sealing:subprocess.run", "beside", 1),
    "when the segment is there": ("hetero_hvd.hub.storage.index:HubIndex.seal", "before", 1),
    "in the index's transaction": ("hetero_hvd.hub.storage.index:HubIndex.seal", "within", 1),
    "when the index knows the segment": ("hetero_hvd.hub.storage.index:HubIndex.seal", "after", 1),
    "when a session is kept": ("hetero_hvd.hub.storage.index:HubIndex.put_session", "after", 1),
    "while a recording takes the place of an earlier one": (
        "hetero_hvd.run.recordings.folder:Path.rename", "after", 2,
    ),
}  # fmt: skip
RETENTION = ("hetero_hvd.hub.storage.index:HubIndex.forget_segment", "after", 1)
NEVER = ("", "before", 0)


def start(hub, point, *more, marker="marker"):
    """Start a hub that is to be killed."""
    call, moment, number = point
    hub.start(*more, program=(PROGRAM, call, moment, str(number), str(hub.folder / marker)))


async def dies(hub, nodes, name):
    """Let all sample until the hub is dead."""
    hub.marker = hub.folder / "marker"
    await sample_until(nodes, lambda: hub.process.poll() is not None)
    assert hub.process.returncode == -signal.SIGKILL, name
    assert hub.marker.exists(), f"the hub was not killed {name}"
    hub.marker.unlink()


async def provoked(hub, name):
    """What somebody orders, where that is what makes a hub come to the point.

    Others are at it by themselves, and may be dead before anybody could ask them.
    """
    orders = {
        "when a session is kept": [("start", {"name": "kept"})],
        "while a recording takes the place of an earlier one": [
            ("cut", {"name": "part", "from": 1}),
            ("cut", {"name": "part"}),
        ],
    }
    if name in orders:
        await hub.order("status")
    with suppress(TryAgainError):  # it is killed before it answers
        for action, arguments in orders.get(name, ()):
            await hub.once(action, **arguments)


def sealing_in(folder):
    """Those that make segments there, whoever has started them."""
    words = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    return [
        each
        for each in words
        if "hetero_hvd.hub.storage.sealing" in each and str(folder) in each[3]
    ]


def nobody_seals(folder):
    """Wait until those that make segments there have died with their hub."""
    deadline = time.monotonic() + 20
    while sealing_in(folder):
        assert time.monotonic() < deadline, "what makes a segment outlives its hub"
        time.sleep(0.05)


def test_whenever_a_hub_is_killed_what_was_sampled_is_stored_once(tmp_path):
    """One death at each point, which is seen to happen; no process that makes a segment is left."""

    async def act():
        async with streaming(tmp_path, 2, lambda hub: start(hub, NEVER)) as (hub, nodes):
            await acknowledged(nodes)
            for name, point in POINTS.items():
                hub.kill()
                start(hub, point)
                await provoked(hub, name)
                await dies(hub, nodes, name)
            start(hub, NEVER)
            names = [each["name"] for each in (await hub.order("status"))["sessions"]]
            assert sorted(names) == ["kept", "part"]
            recorded = list(read_frames(tmp_path / "hub" / "recordings" / "part"))
            await acknowledged(nodes)
            await drained(nodes)
            return [node.sampled for node in nodes], recorded

    sampled, recorded = asyncio.run(act())
    assert [path.name for path in (tmp_path / "hub" / "recordings").iterdir()] == ["part"]
    nobody_seals(tmp_path)
    with stored(tmp_path) as store:
        found = frames_of(store)
    for number, node in enumerate(("node0", "node1")):
        assert [frame.sample for frame in found[node]] == sampled[number]
        assert [frame.sequence for frame in found[node]] == list(range(1, len(found[node]) + 1))
        part = [frame.recorded for frame in recorded if frame.node == node]
        assert part == found[node][: len(part)]
        assert part


def test_a_hub_that_is_killed_while_it_deletes_leaves_no_file_behind(tmp_path):
    """The rest is there, from some sample on."""

    async def act():
        deadly = ("--keep-bytes", "1")
        async with streaming(tmp_path, 1, lambda hub: start(hub, RETENTION, *deadly)) as found:
            hub, nodes = found
            await dies(hub, nodes, "while it deletes")
            left = {int(path.stem) for path in (tmp_path / "hub" / "segments").iterdir()}
            start(hub, NEVER)
            await acknowledged(nodes)
            await drained(nodes)
            return nodes[0].sampled, left

    sampled, left = asyncio.run(act())
    nobody_seals(tmp_path)
    with stored(tmp_path) as store:
        store.seal()  # the last hub may have been killed while it did
        found = frames_of(store, ALL)["node0"]
        known = {segment.number for segment in store.index.segments()}
        files = {int(path.stem) for path in (tmp_path / "hub" / "segments").iterdir()}
    assert files == known
    assert left - known, "nothing was left to be removed"
    assert [frame.sample for frame in found] == sampled[-len(found) :]
    assert len(found) < len(sampled)
