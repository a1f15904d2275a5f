"""What is done beside the training gives way to it, until somebody waits for it."""

import errno
import hashlib
import io
import os
import sys
import threading

import pytest
import torch

from hetero_hvd.worker.recovery.checkpoints.background import NICENESS, Beside
from hetero_hvd.worker.recovery.checkpoints.hashed_file import (
    PIECE_BYTES,
    SMALL_BYTES,
    HashedFile,
    save_hashed,
)
from hetero_hvd.worker.recovery.checkpoints.room import HUGE_PAGE_BYTES, Room

IS_LINUX = sys.platform == "linux"
GENEROUS_SECONDS = 60


def niceness():
    """Of the thread that asks."""
    return os.getpriority(os.PRIO_PROCESS, 0)


OWN = niceness()
LOW = min(OWN + NICENESS * IS_LINUX, 19)


class File(io.BytesIO):
    """Knows how nice each write to it was."""

    def __init__(self):
        super().__init__()
        self.found = []

    def write(self, content):
        """One piece."""
        self.found.append((niceness(), len(content)))
        return super().write(content)


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, []),
        (1, [OWN]),
        (SMALL_BYTES, [OWN]),
        (SMALL_BYTES + 1, [LOW]),
        (PIECE_BYTES, [LOW]),
        (2 * PIECE_BYTES + 1, [LOW, LOW, OWN]),
    ],
)
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_large_pieces_are_written_by_who_gives_way(num_bytes, expected, is_waited_for):
    """All of it is there, once and in order, with its digest; who writes is none the slower."""
    file, beside, content = File(), Beside(), os.urandom(num_bytes)
    hashed = HashedFile(file, beside)
    if is_waited_for:
        with beside.hurried():
            assert hashed.write(content) == num_bytes
        expected = [OWN] * len(expected)
    else:
        assert hashed.write(content) == num_bytes
    assert [each for each, _ in file.found] == expected
    assert max((size for _, size in file.found), default=0) <= PIECE_BYTES
    assert file.getvalue() == content
    assert hashed.num_bytes == num_bytes
    assert hashed.digest.digest() == hashlib.sha256(content).digest()
    assert niceness() == OWN


def test_a_state_is_written_as_torch_reads_it():
    """In pieces, and the digest is that of the file."""
    state, file = {"a": torch.arange(float(PIECE_BYTES)), "b": torch.ones(3)}, File()
    hashed = save_hashed(state, file, Beside())
    assert LOW in {each for each, _ in file.found}
    assert hashed.digest.digest() == hashlib.sha256(file.getvalue()).digest()
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.skipif(not IS_LINUX, reason="elsewhere a thread has no niceness of its own")
def test_who_waits_takes_over_in_the_midst_of_it():
    """Such as a worker that is to end: what it waits for goes on at once."""
    is_begun, may_go_on, beside = threading.Event(), threading.Event(), Beside()

    class Slow(File):
        def write(self, content):
            result = super().write(content)
            is_begun.set()
            assert may_go_on.wait(GENEROUS_SECONDS)
            return result

    file = Slow()
    hashed = HashedFile(file, beside)
    writer = threading.Thread(target=hashed.write, args=(bytes(4 * PIECE_BYTES),))
    writer.start()
    assert is_begun.wait(GENEROUS_SECONDS)
    with beside.hurried():
        may_go_on.set()
        writer.join(GENEROUS_SECONDS)
    assert [each for each, _ in file.found] == [LOW, OWN, OWN, OWN]


def test_the_memory_for_a_copy_is_got_by_who_gives_way():
    """Piece by piece: the rest is for who needs it at once."""
    found = []

    class Watched(Beside):
        def run(self, work):
            return super().run(lambda: (found.append(niceness()), work())[1])

    room = Room(Watched())
    assert not room.is_ready(lambda: [torch.empty(8 * HUGE_PAGE_BYTES)])
    room._thread.join(GENEROUS_SECONDS)
    assert set(found) == {LOW}
    assert niceness() == OWN


class Broken(Exception):  # noqa: N818 - of this test alone
    """What a piece may meet."""


@pytest.mark.parametrize("error", [Broken(), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_an_error_is_the_callers(error):
    """As it came; and the next piece is done all the same."""

    def fail():
        raise error

    beside = Beside()
    with pytest.raises(type(error)):
        beside.run(fail)
    assert beside.run(lambda: 4) == 4


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (os, "nice", PermissionError(errno.EPERM, "not here")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (sys, "platform", None),
    ],
    ids=["no niceness", "no thread", "another system"],
)
def test_where_nothing_can_give_way_it_is_done_all_the_same(monkeypatch, where, name, error):
    """At once, and by whom it may be."""

    def refuse(*_):
        raise error

    monkeypatch.setattr(where, name, refuse if error else "darwin")
    beside = Beside()
    assert [beside.run(lambda n=n: (n, niceness())) for n in range(3)] == [
        (0, OWN), (1, OWN), (2, OWN)
    ]  # fmt: skip
