"""What waits on a node's disk is sent in order, goes when it is stored, and losses are counted."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from hetero_hvd.agent.spool import SampleSpool
from hetero_hvd.discovery.hub_link import Dropped
from hetero_hvd.run.recordings.damaged_files import damaged_files


def spool(folder, **more):
    """One."""
    more.setdefault("max_bytes", 2**20)
    return SampleSpool(folder, boot="b", wall_offset=lambda: 5.0, **more)


def numbers_of(found):
    """All numbers, in order."""
    return [number for _, numbers in found for number in numbers]


def drained(one):
    """All that waits, as numbers of streams; it is acknowledged."""
    found = []
    while (spooled := one.oldest(7, 2**20)) is not None:
        numbers = [each.sequence for each in spooled.samples]
        found.append((spooled.stream, numbers))
        one.acknowledge(spooled.stream, numbers[-1] + 1, [])
    return found


def test_what_was_taken_in_comes_out_in_order(tmp_path):
    """And again until it is acknowledged."""
    one = spool(tmp_path)
    for number in range(20):
        one.append(float(number), b"%d" % number)
    first = one.oldest(5, 2**20)
    assert one.oldest(5, 2**20) == first
    assert [each.sample for each in first.samples] == [b"0", b"1", b"2", b"3", b"4"]
    assert numbers_of(drained(one)) == list(range(1, 21))
    assert one.dropped() == []
    one.close()


def test_the_next_agent_sends_what_is_left(tmp_path):
    """As a stream of its own; also where a crash has torn the last sample."""
    one = spool(tmp_path)
    for number in range(3):
        one.append(float(number), b"x" * 50)
    one.close()
    (path,) = tmp_path.glob("*.spool")
    path.write_bytes(path.read_bytes()[:-1])
    other = spool(tmp_path)
    other.append(9.0, b"y")
    assert drained(other) == [(one.stream, [1, 2]), (other.stream, [1])]
    assert one.stream != other.stream
    other.close()


def test_beyond_its_room_the_oldest_are_dropped_and_counted(tmp_path):
    """Exactly; what is left is within the room."""
    one = spool(tmp_path, max_bytes=2**16)
    for number in range(1000):
        one.append(float(number), b"x" * 200)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 2**16
    assert one.dropped() == [Dropped(one.stream, 1, one.num_dropped)]
    left = numbers_of(drained(one))
    assert left == list(range(one.num_dropped + 1, 1001))
    assert 0 < one.num_dropped < 1000
    one.close()


def test_what_was_dropped_of_an_earlier_life_is_told(tmp_path):
    """Though none of its samples is left."""
    one = spool(tmp_path, max_bytes=2**16)
    one.append(0.0, b"x" * 200)
    one.close()
    other = spool(tmp_path, max_bytes=2**16)
    for number in range(1000):
        other.append(float(number), b"x" * 200)
    other.close()
    third = spool(tmp_path, max_bytes=2**16)
    told = third.dropped()
    assert told[0] == Dropped(one.stream, 1, 1)
    third.acknowledge(third.stream, 1, told)
    assert third.dropped() == []
    third.close()


@pytest.mark.parametrize("num_written", [0, 9], ids=["nothing fits", "a part fits"])
def test_a_full_disk_costs_what_came_meanwhile_and_no_more(
    tmp_path, monkeypatch, caplog, num_written
):
    """It is told once; what waits before is not taken for lost, nor any file for damaged."""
    one = spool(tmp_path)
    write, fails = os.write, [False]

    def may_fail(descriptor, content):
        if fails[0] and num_written:
            return write(descriptor, content[:num_written])
        if fails[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", may_fail)
    for number in range(9):
        fails[0] = 3 <= number < 6
        one.append(float(number), b"x")
    assert one.num_dropped == 3
    assert len(list(tmp_path.glob("*.spool"))) == 2
    assert one.dropped() == []  # samples before it wait
    assert [numbers for _, numbers in drained(one)] == [[1, 2, 3], [7, 8, 9]]
    assert one.dropped() == [Dropped(one.stream, 4, 6)]
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
    one.close()
    assert "damaged" not in caplog.text
    assert damaged_files(tmp_path) == []


@pytest.fixture
def waiting(tmp_path):
    """A spool, three samples of an earlier life in it, and the file that they are in."""
    one = spool(tmp_path)
    for number in range(3):
        one.append(float(number), b"x")
    one.close()
    (path,) = tmp_path.glob("*.spool")
    other = spool(tmp_path)
    yield other, path, one.stream
    other.close()


def test_what_cannot_be_read_now_stays(waiting):
    """As where a process has too many files open."""
    other, _, stream = waiting
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            other.oldest(9, 999)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (drained(other), other.dropped()) == ([(stream, [1, 2, 3])], [])


LOST = {
    "the file is gone": (lambda path: path.unlink(), [], (1, 3)),
    "it is empty": (lambda path: path.write_bytes(b""), [], (1, 3)),
    "its last sample is damaged": (
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), [1, 2], (3, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "left", "dropped"), LOST.values(), ids=LOST)
def test_what_the_disk_does_not_give_back_is_counted(waiting, damage, left, dropped):
    """The hub learns of it, also where no number follows."""
    other, path, stream = waiting
    damage(path)
    assert drained(other) == ([(stream, left)] if left else [])
    assert (other.dropped(), other.num_dropped) == (
        [Dropped(stream, *dropped)], dropped[1] - dropped[0] + 1,
    )  # fmt: skip


def test_two_agents_do_not_share_a_spool(tmp_path):
    """The second one is refused."""
    one = spool(tmp_path)
    with pytest.raises(OSError, match="another agent"):
        spool(tmp_path)
    one.close()
    spool(tmp_path).close()
