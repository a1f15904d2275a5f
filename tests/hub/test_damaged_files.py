"""Damage on a disk is told once, counted and kept aside, and costs no more than it touches."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path

import msgspec
import pytest

from hetero_hvd.agent.spool import DROPPED_FILE, HUB_FILE
from hetero_hvd.cli.record.record import _lines
from hetero_hvd.core.recording.framing import records_in
from hetero_hvd.discovery.hub_link import Dropped
from hetero_hvd.errors import JobError
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.storage.store import NodeBatch
from hetero_hvd.messages import NodeSampled
from hetero_hvd.run.recordings.damaged_files import MAX_KEPT, damaged_files, set_aside
from hetero_hvd.run.recordings.frames import read_told
from tests.agent.test_spool import drained, spool
from tests.hub.rig import acknowledged, frames_of, soon, stored, streaming
from tests.hub.rig import drained as all_stored
from tests.hub.test_store import ALL, batch, clocks, numbers, opened

__all__ = ["clocks", "opened", "soon"]


def flipped(path, at):
    """Another byte than there was."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def in_record(number, place):
    """Another byte in the frame of a record: of its mark, length, checksum or itself."""

    def damage(path):
        flipped(path, list(records_in(path.read_bytes()))[number - 1].begin + place)

    return damage


def in_place(kind):
    """Something else stands there."""

    def damage(path):
        path.unlink()
        kind(path)

    return damage


def cut(path):
    """In the middle of its second record."""
    os.truncate(path, list(records_in(path.read_bytes()))[1].begin + 20)


def zeros_within(path):
    """As a bad sector leaves them, over the end of a record and the begin of the next one."""
    begin = list(records_in(path.read_bytes()))[1].begin
    content = path.read_bytes()
    path.write_bytes(content[: begin - 4] + bytes(8) + content[begin + 4 :])


DAMAGES = {
    **{
        f"the {part} of record {number}": (
            in_record(number, place), [n for n in (1, 2, 3) if n != number],
        )
        for number in (1, 2, 3)
        for part, place in (("mark", 1), ("length", 5), ("checksum", 9), ("body", 14))
    },
    "zeros within": (zeros_within, [3]),
    "zeros follow": (lambda path: path.write_bytes(path.read_bytes() + bytes(99)), [1, 2, 3]),
    "torn": (cut, [1]),
    "all zeros": (lambda path: path.write_bytes(bytes(path.stat().st_size)), []),
    "foreign": (lambda path: path.write_bytes(b"noise" * 50), []),
    "a folder": (in_place(Path.mkdir), []),
    "a pipe": (in_place(os.mkfifo), []),
}  # fmt: skip
"""What is done to a file of three records, and which of them are left."""


def told_of(caplog, path):
    """How often it was."""
    return sum(str(path) in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("damage", "left"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_journal(opened, caplog, damage, left):
    """The others of its samples are there; those that are not are counted as missing."""
    store = opened()
    for first in (1, 2, 3):
        store.commit([batch(first, 1)])
    (path,) = store.folder.glob("*.journal")
    damage(path)
    store = opened()
    assert numbers(store) == left
    assert (told_of(caplog, path), store.num_damaged) == (1, 1)
    assert store.commit([batch(4, 1)]) == [5]
    for _ in range(2):
        assert numbers(store) == [*left, 4]
        gaps = [n for gap in store.missing().get("s", ()) for n in range(gap.first, gap.last + 1)]
        assert sorted([*left, *gaps]) == [1, 2, 3]
        assert store.streams()["s"].num_missing == len(gaps)
        store.seal()
    told = asyncio.run(HubCommands(store, Fleet(store, lambda: 0.0)).act("recover", {}))
    assert told["damaged"] == [f"{path}.damaged"] == list(map(str, damaged_files(store.folder)))
    assert f"damaged {path}.damaged" in "\n".join(_lines("recover", told))
    assert numbers(opened()) == [*left, 4]
    assert told_of(caplog, path) == 1


@pytest.mark.parametrize(("damage", "left"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_spool(tmp_path, caplog, damage, left):
    """The others are sent, and those of the next agent; a hub finds the gaps by the numbers."""
    one = spool(tmp_path)
    for number in range(3):
        one.append(float(number), b"x" * 50)
    one.close()
    (path,) = tmp_path.glob("*.spool")
    damage(path)
    other = spool(tmp_path)
    other.append(9.0, b"y")
    found = drained(other)
    assert [n for stream, numbers in found if stream == one.stream for n in numbers] == left
    assert found[-1] == (other.stream, [1])
    assert told_of(caplog, path) == 1
    assert [each.name for each in damaged_files(tmp_path)] == [f"{path.name}.damaged"]
    other.close()
    third = spool(tmp_path)
    third.append(9.0, b"y")
    assert one.stream not in [stream for stream, _ in drained(third)]
    third.close()
    assert told_of(caplog, path) == 1


def test_each_byte_of_a_spool(tmp_path):
    """Of three samples two are left at least, and each as it was."""
    one = spool(tmp_path)
    for number in range(3):
        one.append(float(number), b"%d" % number)
    one.close()
    (path,) = tmp_path.glob("*.spool")
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content)
        flipped(path, at)
        other = spool(tmp_path)
        waiting = []
        while (spooled := other.oldest(9, 2**20)) is not None:
            waiting += [(each.sequence, each.sample) for each in spooled.samples]
            other.acknowledge(spooled.stream, spooled.samples[-1].sequence + 1, [])
        other.close()
        assert len(waiting) == 2
        assert set(waiting) < {(1, b"0"), (2, b"1"), (3, b"2")}


OF_A_SEGMENT = {
    "a byte": (lambda path: flipped(path, 9), ["b"]),
    "a byte at its end": (lambda path: flipped(path, -9), ["a"]),
    "torn": (lambda path: os.truncate(path, path.stat().st_size - 9), ["a"]),
    "gone": (Path.unlink, []),
    **{name: (damage, []) for name, (damage, left) in DAMAGES.items() if not left},
}
"""What is done to it, and of which nodes the samples are left."""


@pytest.mark.parametrize(("damage", "left"), OF_A_SEGMENT.values(), ids=OF_A_SEGMENT)
def test_a_damaged_segment(opened, caplog, damage, left):
    """The other pieces of it are there, and the next segment."""
    store = opened()
    store.commit([batch(1, 2), batch(1, 2, stream="t", node="b")])
    store.seal()
    (path,) = (store.folder / "segments").iterdir()
    store.commit([batch(3, 1), batch(3, 1, stream="t", node="b")])
    store.seal()
    damage(path)
    for _ in range(2):
        found = [(each.node, each.recorded.sequence) for each in store.frames(ALL)]
        expected = {"a": [3], "b": [3]} | {node: [1, 2, 3] for node in left}
        assert found == [(node, n) for node, numbers in expected.items() for n in numbers]
    assert (told_of(caplog, path), store.num_damaged) == (2 - len(left), 1)


def test_a_damaged_figure_costs_that_figure(opened, caplog):
    """In a recording as in a plot; all else that the samples tell is there, and it is told once."""
    store = opened()
    told = [NodeSampled(seconds=math.sin(number), load=math.cos(number)) for number in range(300)]
    samples = [msgspec.msgpack.encode(each) for each in told]
    sent = msgspec.structs.replace(batch(1, 300).batch, samples=samples)
    store.commit([NodeBatch("a", sent)])
    store.seal()
    (path,) = (store.folder / "segments").iterdir()
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    asyncio.run(commands.act("cut", {"name": "whole", "from": 1}))
    flipped(path, path.stat().st_size // 2)
    with pytest.raises(JobError, match="damaged in the store by now: the folder stays"):
        asyncio.run(commands.act("cut", {"name": "whole"}))
    for _ in range(2):
        found = [read_told(each.recorded.sample) for each in store.frames(ALL)]
        assert [each.load for each in found] == [each.load for each in told]
        assert all(math.isnan(each.seconds) for each in found)
    assert (
        caplog.text.count("300 samples of a do not tell seconds, which is damaged")
        == store.num_damaged
        == 1
    )


SMALL_FILES = {
    "a byte": lambda path: flipped(path, -1),
    "another text": lambda path: path.write_bytes(b"\xff noise"),
    "zeros": lambda path: path.write_bytes(bytes(40)),
    "a folder": in_place(Path.mkdir),
    "a pipe": in_place(os.mkfifo),
}


@pytest.mark.parametrize("damage", SMALL_FILES.values(), ids=SMALL_FILES)
def test_what_a_spool_knows_beside_its_samples(tmp_path, caplog, damage):
    """Which hub it was and what was dropped: nothing wrong is told, and the next is kept again."""
    one = spool(tmp_path, max_bytes=2**13)
    one.hub = "first"
    for number in range(200):
        one.append(float(number), b"x" * 200)
    (dropped,) = one.dropped()
    one.close()
    for name in (HUB_FILE, DROPPED_FILE):
        damage(tmp_path / name)
    other = spool(tmp_path, max_bytes=2**13)
    assert (other.hub, other.dropped()) == ("", [])
    assert dropped == Dropped(one.stream, 1, one.num_dropped)
    assert drained(other)[0][1][0] == one.num_dropped + 1  # by which a hub knows
    other.hub = "second"
    other.close()
    third = spool(tmp_path)
    assert third.hub == "second"
    third.close()
    assert [told_of(caplog, tmp_path / name) for name in (HUB_FILE, DROPPED_FILE)] == [1, 1]


def test_of_those_set_aside_the_newest_are_kept(tmp_path):
    """A disk that fails may damage file after file."""
    for number in range(9):
        path = tmp_path / f"{number:010}.spool"
        path.touch()
        set_aside(path)
    assert [int(path.name[:10]) for path in damaged_files(tmp_path)] == list(range(9))[-MAX_KEPT:]


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("soon")
def test_a_hub_that_finds_its_journal_damaged_goes_on(tmp_path):
    """What was sampled is stored, but for what the damage has touched, and that is counted."""

    async def act():
        async with streaming(tmp_path, 2) as (hub, nodes):
            await acknowledged(nodes)
            await acknowledged(nodes)
            hub.kill()
            (path,) = (tmp_path / "hub").glob("*.journal")
            in_record(2, 5)(path)
            hub.start()
            await acknowledged(nodes)
            await all_stored(nodes)
            assert hub.log.count(str(path.relative_to(tmp_path))) == 1
            status = await hub.order("status")
            return [node.sampled for node in nodes], status

    sampled, status = asyncio.run(act())
    assert status["damaged_files"] == 1
    with stored(tmp_path) as store:
        found = frames_of(store)
    lost = 0
    for number, node in enumerate(("node0", "node1")):
        kept = [sampled[number][each.sequence - 1] for each in found[node]]
        assert [each.sample for each in found[node]] == kept
        lost += len(sampled[number]) - len(kept)
    assert sum(each["missing"] for each in status["nodes"]) == lost > 0
