"""What a hub has acknowledged is there once, whatever happens between two instructions."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import sqlite3
from contextlib import closing, nullcontext

import msgspec
import pytest

from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.discovery.hub_link import Dropped, SampleBatch
from hetero_hvd.errors import JobError
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.storage.index import FILE, MIGRATIONS, HubIndex
from hetero_hvd.hub.storage.journal import journal_numbers
from hetero_hvd.hub.storage.sealing import seal_apart
from hetero_hvd.hub.storage.store import NodeBatch, SampleStore
from hetero_hvd.messages import NodeSampled

ALL = RecordingSession(name="all", from_microseconds=0)
WALL = 1_800_000_000.0


class Clocks:
    """Of the hub's machine."""

    def __init__(self):
        self.boot = "b"
        self.since_boot = 1000.0
        self.wall = WALL


@pytest.fixture
def clocks():
    """Their state, which a test changes."""
    return Clocks()


@pytest.fixture
def opened(tmp_path, clocks):
    """Opens the store of one folder; the one before it is closed, or as if it were killed."""
    there = []

    def again(**more):
        while there:
            there.pop().close()
        store = SampleStore(
            tmp_path / "hub",
            boot=clocks.boot,
            clock=lambda: clocks.since_boot,
            wall_clock=lambda: clocks.wall,
            **more,
        )
        there.append(store)
        return store

    yield again
    for store in there:
        store.close()


def batch(first, count, *, stream="s", node="a", offset=WALL - 1000, **more):
    """Samples with numbers from `first` on, each a second after the other."""
    samples = [msgspec.msgpack.encode(NodeSampled(node=node, load=float(n))) for n in range(count)]
    times = [900.0 + first + n for n in range(count)]
    more.setdefault("uncertainty_seconds", 0.0)
    return NodeBatch(
        node,
        SampleBatch(
            stream=stream,
            first=first,
            times_seconds=times,
            samples=samples,
            offset_seconds=offset,
            **more,
        ),
    )


def numbers(store, session=ALL):
    """Of all samples, in the order in which they are told."""
    return [frame.recorded.sequence for frame in store.frames(session)]


def test_what_is_acknowledged_is_there_after_a_crash(opened):
    """Before and after it is sealed; what is sent again is there once."""
    store = opened()
    assert store.commit([batch(1, 5), batch(4, 5)]) == [9, 9]
    store = opened()
    assert store.commit([batch(1, 9)]) == [10]
    store.seal()
    assert store.commit([batch(10, 2)]) == [12]
    store = opened()
    assert numbers(store) == list(range(1, 12))
    (state,) = store.streams().values()
    assert (state.num_samples, state.num_missing, store.num_duplicates) == (11, 0, 0)


def test_a_gap_stays_a_gap(opened):
    """Told by its numbers, over crashes and sealing."""
    store = opened()
    store.commit([batch(1, 2), batch(5, 2)])
    store.commit([batch(7, 0, dropped=[Dropped("s", 7, 9), Dropped("t", 1, 4)])])
    store.commit([batch(10, 1, dropped=[Dropped("s", 7, 9)])])
    for _ in range(2):
        found = {
            name: [tuple(gap) for gap in gaps if gap.size] for name, gaps in store.missing().items()
        }
        assert found == {"s": [(3, 4), (7, 9)], "t": [(1, 4)]}
        assert {name: s.num_missing for name, s in store.streams().items()} == {"s": 5, "t": 4}
        store.seal()
        store = opened()
    assert numbers(store) == [1, 2, 5, 6, 10]


def test_an_agent_that_gets_another_name_keeps_its_samples_apart(opened):
    """What its spool still has is sent by the new name: it is so before and after it is sealed."""
    store = opened()
    store.commit([batch(1, 2, node="b"), batch(3, 2, node="a")])
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    for name in ("before", "after"):
        found = [(frame.node, frame.recorded.sequence) for frame in store.frames(ALL)]
        assert found == [("a", 3), ("a", 4), ("b", 1), ("b", 2)]
        ours = RecordingSession(name="a", from_microseconds=0, nodes=("a",))
        assert numbers(store, ours) == [3, 4]
        assert store.streams()["s"].node == "a"
        told = asyncio.run(commands.act("cut", {"name": name, "from": 1}))
        assert (told["frames"], told["missing"]) == (4, 0)
        store.seal()
        store = opened()
        commands = HubCommands(store, Fleet(store, lambda: 0.0))


CRASHES = ("the segment is written", "the index knows it", "the journal is deleted")


@pytest.mark.parametrize("when", CRASHES)
def test_a_crash_while_sealing_costs_nothing(opened, monkeypatch, when):
    """Whatever was half-done is done again, or was done."""
    store = opened()
    store.commit([batch(1, 5), batch(1, 3, stream="t", node="b")])

    class KilledError(Exception):
        """In the place of SIGKILL."""

    def kill(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        if when == CRASHES[0]:
            patched.setattr(HubIndex, "seal", kill)
        elif when == CRASHES[1]:
            patched.setattr("pathlib.Path.unlink", kill)
        is_late = when == CRASHES[2]
        with nullcontext() if is_late else pytest.raises(KilledError):
            store.seal()
    store = opened()
    assert numbers(store) == [1, 2, 3, 4, 5, 1, 2, 3]
    store.seal()
    assert numbers(store) == [1, 2, 3, 4, 5, 1, 2, 3]
    assert len(journal_numbers(store.folder)) == 1


def test_a_process_seals_as_this_one_does(opened, monkeypatch):
    """And a disk that does not take it leaves the journal where it is."""
    store = opened(sealer=seal_apart)
    store.commit([batch(1, 3), batch(5, 1)])
    segments = store.folder / "segments"
    monkeypatch.setattr(store._files, "segments", segments / "none")
    with pytest.raises(OSError, match="No such file"):
        store.seal()
    monkeypatch.setattr(store._files, "segments", segments)
    assert numbers(store) == [1, 2, 3, 5]
    store.seal()
    assert len(list(segments.iterdir())) == 1
    store = opened()
    assert numbers(store) == [1, 2, 3, 5]
    (state,) = store.streams().values()
    assert (state.num_samples, state.num_missing, state.next_sequence) == (4, 1, 6)


DROPPED = {
    "in their order": [(1, 499), (500, 500)],
    "the last one first, as a full disk was before a full spool": [(500, 500), (1, 499)],
    "after some that a power cut has torn": [(400, 500)],
    "told again, with more": [(1, 300), (1, 500)],
}


@pytest.mark.parametrize("dropped", DROPPED.values(), ids=DROPPED)
def test_what_will_never_come_is_counted_once(opened, dropped):
    """An earlier life of an agent had 500 samples, none of which was sent."""
    store = opened()
    store.commit([batch(1, 1, stream="t", dropped=[Dropped("s", *each) for each in dropped])])
    assert store.streams()["s"].num_missing == 500
    assert sum(each.size for each in store.missing()["s"]) == 500


def told(store):
    """What it tells of its streams and nodes."""
    return store.streams(), store.nodes(), dict(store.latest)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_full_disk_acknowledges_nothing(opened, monkeypatch, call):
    """And loses nothing: what comes again is stored when there is room."""
    store = opened()
    store.commit([batch(1, 2)])
    before = told(store)
    fired = []

    def full(*_):
        fired.append(call)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            store.commit([batch(1, 4), batch(1, 1, stream="t", node="b", offset=9 * WALL)])
    assert fired
    assert (told(store), store.num_duplicates, store.num_ahead) == (before, 0, 0)
    assert store.commit([batch(3, 2)]) == [5]
    assert numbers(opened()) == [1, 2, 3, 4]


def times(store):
    """Of all samples, seconds after the wall clock of the first start."""
    return [frame.recorded.at_microseconds / 1e6 - WALL for frame in store.frames(ALL)]


WALL_CLOCKS = {"set back an hour": -3600.0, "as it was": 0.0}


@pytest.mark.parametrize("change", WALL_CLOCKS.values(), ids=WALL_CLOCKS)
def test_a_wall_clock_that_is_set_back_moves_no_sample(opened, clocks, change):
    """Of the hub's machine, while it runs and when it starts anew."""
    store = opened()
    store.commit([batch(1, 3)])
    clocks.wall += 10 + change
    clocks.since_boot += 10
    assert store.now_seconds() == WALL + 10
    store = opened()
    assert store.now_seconds() == WALL + 10
    store.commit([batch(4, 2)])
    assert times(store) == [-99.0, -98.0, -97.0, -96.0, -95.0]


def test_samples_of_the_future_bear_the_time_of_their_arrival(opened):
    """They are counted: an offset was wrong."""
    store = opened()
    store.commit([batch(1, 2, offset=WALL + 5000)])
    assert store.num_ahead == 2
    assert times(store) == pytest.approx([0.0, 1e-6], abs=2e-6)


def test_a_night_of_sleep_is_a_gap_of_its_length(opened, clocks):
    """The clock since boot runs while a machine sleeps."""
    store = opened()
    clocks.since_boot += 40_000
    store.commit([batch(1, 1), batch(2, 1)])
    late = batch(3, 1)
    late.batch.times_seconds[0] += 30_000
    store.commit([late])
    assert [round(b - a) for a, b in zip(times(store), times(store)[1:], strict=False)] == [
        1,
        30001,
    ]


def test_a_stream_of_an_ended_boot_has_its_own_wall_clock(opened):
    """Its uncertainty is not known, its samples are there."""
    store = opened()
    store.commit([batch(1, 2, uncertainty_seconds=math.nan)])
    assert numbers(store) == [1, 2]


def test_sessions_are_slices(opened):
    """By time and node, of sealed and of new samples."""
    store = opened()
    store.commit([batch(1, 4), batch(1, 4, stream="t", node="b")])
    store.seal()
    store.commit([batch(5, 4)])
    begin = round((WALL - 98) * 1e6)
    some = RecordingSession(name="some", from_microseconds=begin, nodes=("a",))
    assert numbers(store, some) == [2, 3, 4, 5, 6, 7, 8]
    part = msgspec.structs.replace(some, until_microseconds=begin + 4_000_000)
    assert numbers(store, part) == [2, 3, 4, 5]


def test_two_hubs_do_not_share_a_store(opened, tmp_path, clocks):
    """The second one is told what to do."""
    opened()
    with pytest.raises(JobError, match="another hub has it"):
        SampleStore(tmp_path / "hub", boot="b", clock=lambda: clocks.since_boot)


def test_a_later_schema_is_refused_in_words(tmp_path):
    """An earlier one is brought up to date; see the other tests, which begin with none."""
    index = HubIndex(tmp_path)
    with index._connected() as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    with pytest.raises(JobError, match="later hetero_hvd"):
        HubIndex(tmp_path)
    (tmp_path / FILE).write_bytes(b"noise" * 1000)
    with pytest.raises(JobError, match="cannot be used"):
        HubIndex(tmp_path)


def test_a_hub_is_upgraded_in_the_middle_of_a_recording(opened, monkeypatch):
    """What the version before it has stored is there, and its session goes on."""
    store = opened()
    store.index.put_session(ALL)
    store.commit([batch(1, 3)])
    store.seal()
    store.commit([batch(4, 1)])
    further = (*MIGRATIONS, "ALTER TABLE sessions ADD COLUMN later TEXT;")
    monkeypatch.setattr("hetero_hvd.hub.storage.index.MIGRATIONS", further)
    store = opened()
    with store.index._connected() as connection:
        assert connection.execute("SELECT name, later FROM sessions").fetchall() == [("all", None)]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(further),)
    assert store.commit([batch(4, 2)]) == [6]
    assert numbers(store) == [1, 2, 3, 4, 5]


def flipped(path, at):
    """Another byte than there was."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def changed(order):
    """What an order of SQL makes of the catalogue."""

    def change(folder):
        with closing(sqlite3.connect(folder / FILE)) as connection, connection:
            connection.executescript(order)

    return change


BAD_INDEX = {
    "half of it": lambda folder: os.truncate(folder / FILE, 8192),
    "another first page": lambda folder: flipped(folder / FILE, 20),
    "noise": lambda folder: (folder / FILE).write_bytes(b"noise" * 1000),
    **{
        f"no table {name}": changed(f"DROP TABLE {name}")
        for name in ("meta", "streams", "pieces", "sessions")
    },
    "a run that is none": changed("INSERT INTO runs VALUES ('r', '{}')"),
    **{
        f"{key} is {value}": changed(
            f"UPDATE meta SET value = '{value}' WHERE key = '{key}'"  # noqa: S608 - ours
        )
        for key, value in (("anchor", "x"), ("anchor", "[1]"), ("sealed", "x"))
    },
    **{
        f"a session's {column} is {value}": changed(
            f"UPDATE sessions SET {column} = {value}"  # noqa: S608 - ours
        )
        for column, value in (
            ("nodes", "'x'"), ("nodes", "'5'"), ("name", "'../x'"), ("every_seconds", "'x'"),
            ("begin", "'x'"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", BAD_INDEX.values(), ids=BAD_INDEX)
def test_a_damaged_catalogue_is_one_line(opened, tmp_path, damage):
    """That names the file and says what to do; no sample is touched."""
    store = opened(seal_bytes=1)
    store.commit([batch(1, 3)])
    store.seal()
    store.index.put_session(ALL)
    damage(tmp_path / "hub")
    before = sorted((tmp_path / "hub" / "segments").iterdir())
    with pytest.raises(JobError, match=rf"{FILE}: cannot be used: .*put back a copy"):
        HubCommands(store := opened(), Fleet(store, lambda: 0.0))
    assert sorted((tmp_path / "hub" / "segments").iterdir()) == before
    assert before


ONE_NODE = {
    "while it is written": lambda store, _again: store,
    "after a restart": lambda _store, again: again(),
    "over two journals": lambda store, _again: store,
    "sealed": lambda store, _again: store.seal() or store,
    "damaged at another's": lambda store, _again: damage(store, b"other") or store,
}


def damage(store, mark):
    """Change a byte behind the first mark of its journal."""
    (path,) = store.folder.glob("*.journal")
    content = bytearray(path.read_bytes())
    content[content.index(mark) + len(mark) + 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("case", ONE_NODE)
def test_of_a_journal_one_nodes_part_is_read_alone(opened, monkeypatch, case):
    """The same samples as of all that there is, from a hundredth of its bytes."""
    one = RecordingSession(name="one", from_microseconds=0, nodes=("other-7",))
    store = opened()

    def commit(first):
        store.commit([batch(first, 3, stream=f"s{n}", node=f"other-{n}") for n in range(300)])

    commit(1)
    if case == "over two journals":
        store._sealer = lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        with pytest.raises(OSError, match="full"):
            store.seal()
    commit(4)
    store = ONE_NODE[case](store, opened)
    expected = [each for each in store.frames(ALL) if each.node == "other-7"]
    read = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *words: read.append(real(*words)) or read[-1])
    assert list(store.frames(one)) == expected
    assert len(expected) == 6
    assert bool(read) == (case != "sealed")
    size_bytes = sum(path.stat().st_size for path in store.folder.glob("*.journal"))
    assert sum(map(len, read)) * 100 <= size_bytes
