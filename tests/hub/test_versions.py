"""Neighbouring versions work together, others are told which end to upgrade; stores go along."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from hetero_hvd.discovery import hub_link as link
from hetero_hvd.errors import JobError
from hetero_hvd.hub.storage.index import FILE, MIGRATIONS
from hetero_hvd.run.recordings.frames import read_frames
from tests.hub.rig import (
    ALL,
    HubProcess,
    SampledNode,
    acknowledged,
    drained,
    frames_of,
    sample_until,
    soon,
    stored,
    streaming,
    while_sampling,
)

__all__ = ["soon"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("soon"), pytest.mark.timeout(300)]
PROGRAM = str(Path(__file__).with_name("other_version_hub.py"))
NOW = len(MIGRATIONS)


def start(hub, schema=NOW, protocol=link.PROTOCOL, oldest=link.OLDEST_PROTOCOL):
    """Start a hub of a version."""
    hub.start(program=(PROGRAM, str(schema), str(protocol), str(oldest)))


def schema_of(folder):
    """Of the index, as SQLite tells it."""
    with contextlib.closing(sqlite3.connect(folder / "hub" / FILE)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_hub_is_upgraded_in_the_middle_of_a_recording(tmp_path):
    """From the schema before to this one and to a later one; from there nobody goes back."""
    found = []

    async def act():
        async with streaming(tmp_path, 2, lambda hub: start(hub, NOW - 1)) as (hub, nodes):
            await hub.order("start", name="all")
            segments = tmp_path / "hub" / "segments"
            await sample_until(nodes, lambda: list(segments.glob("*.segment")))
            for schema in (NOW, NOW + 1):
                await acknowledged(nodes)
                hub.kill()
                found.append(schema_of(tmp_path))
                start(hub, schema)
            await acknowledged(nodes)
            told = await while_sampling(nodes, hub.order("stop"))
            await drained(nodes)
            hub.kill()
            found.append(schema_of(tmp_path))
            hub.start()
            assert hub.process.wait(60) == 2
            assert f"is of a later hetero_hvd (schema {NOW + 1}, known is {NOW})" in hub.log
            return [node.sampled for node in nodes], told

    sampled, told = asyncio.run(act())
    assert found == [NOW - 1, NOW, NOW + 1]
    frames = list(read_frames(tmp_path / told["folder"]))
    for number, node in enumerate(("node0", "node1")):
        own = [frame.recorded for frame in frames if frame.node == node]
        skipped = own[0].sequence - 1
        assert [frame.sample for frame in own] == sampled[number][skipped : skipped + len(own)]


PAIRS = {
    "a later agent": ((2, 1), (1, 1), ""),
    "a later hub": ((1, 1), (2, 1), ""),
    "an agent that is too old": ((1, 1), (3, 2), "upgrade where that runs"),
    "a hub that is too old": ((3, 2), (1, 1), "upgrade the hub"),
}


@pytest.mark.parametrize(("ours", "hubs", "words"), PAIRS.values(), ids=PAIRS)
def test_versions_that_talk(  # noqa: PLR0917 - of a table
    tmp_path, monkeypatch, caplog, ours, hubs, words
):
    """Agents and those who order something; what is refused waits, and is told at both ends."""
    monkeypatch.setattr(link, "PROTOCOL", ours[0])
    monkeypatch.setattr(link, "OLDEST_PROTOCOL", ours[1])
    hub = HubProcess(tmp_path)
    start(hub, NOW, *hubs)

    async def act():
        node = SampledNode("node0", tmp_path, hub.target)
        try:
            if not words:
                await acknowledged([node])
                await drained([node])
                assert (await hub.order("status"))["nodes"][0]["node"] == "node0"
                return node.sampled
            await sample_until([node], lambda: words in caplog.text)
            with pytest.raises(JobError, match=words):
                await hub.order("status")
            assert node.waits()
            return []
        finally:
            await node.close()
            hub.kill()

    sampled = asyncio.run(act())
    assert bool(words) == ("refused" in hub.log)
    assert words in hub.log
    with stored(tmp_path) as store:
        frames = frames_of(store, ALL)
    assert [frame.sample for frame in frames.get("node0", [])] == sampled
