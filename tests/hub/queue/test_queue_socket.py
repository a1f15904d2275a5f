"""The queue's socket under a crowd: orders wait for each other, and no user keeps others out."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from hetero_hvd.discovery.submission.queue_client import order
from hetero_hvd.discovery.submission.queue_link import QueueOrder
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.hub.queue import queue_socket
from hetero_hvd.hub.queue.queue_socket import QueueSocket
from hetero_hvd.security.local_sockets import PeerUser


class Answering:
    """Orders that are answered by what was ordered."""

    def act(self, user, order, _tree):
        """Who has ordered what."""
        return [user.name, order.name]


@pytest.fixture
def users(monkeypatch):
    """Who connects next, the first first; at last ann."""
    coming = []
    ann = PeerUser(1, "ann")
    monkeypatch.setattr(queue_socket, "peer_of", lambda _: coming.pop(0) if coming else ann)
    return coming


@pytest.fixture
def path(tmp_path, users):
    """Of a socket that is served in a thread."""
    assert users == []  # only ann connects so far
    ready = threading.Event()
    loops = []

    async def serve():
        served = QueueSocket(tmp_path / "queue.sock", Answering())
        await served.listen()
        ending = asyncio.Event()
        loops.append((asyncio.get_running_loop(), ending))
        ready.set()
        await ending.wait()
        await served.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    yield tmp_path / "queue.sock"
    loop, ending = loops[0]
    loop.call_soon_threadsafe(ending.set)
    thread.join(10)


def silent(path):
    """A connection that orders nothing."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(str(path))
    return end


def test_who_connects_and_says_nothing_keeps_only_himself_waiting(path, users):
    """Bob has all of his places, and Ann hers."""
    number = 3 * queue_socket.PLACES
    users += [PeerUser(2, "bob")] * number
    ends = [silent(path) for _ in range(number)]
    assert order(QueueOrder(name="list"), socket_path=path) == ["ann", "list"]
    for end in ends:
        end.close()


def test_who_has_too_many_connections_is_told_so(path, users, monkeypatch):
    """It may be tried again."""
    monkeypatch.setattr(queue_socket, "MAX_CONNECTIONS", 3)
    users += [PeerUser(2, "bob")] * 4
    ends = [silent(path) for _ in range(3)]
    with pytest.raises(TryAgainError, match=r"^bob has 3 orders under way already$"):
        order(QueueOrder(name="list"), b"x" * 2**22, socket_path=path)
    for end in ends:
        end.close()


def test_a_crowd_is_served_one_after_the_other(path):
    """More than the kernel keeps waiting, of a user who may have fewer under way."""
    found = []

    def ask():
        found.append(order(QueueOrder(name="list"), socket_path=path))

    asking = [threading.Thread(target=ask) for _ in range(300)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(30)
    assert found == [["ann", "list"]] * 300


WRONG = {
    "no JSON": (b"{\n", "the order is not understood: "),
    "no UTF-8": (b"\xff\xfe\n", "the order is not understood: "),
    "a long line": (b"x" * 5 * 2**20, "the order is not understood: "),
    "too deep": (b"[" * 100_000 + b"\n", "the order is not understood: "),
    "half a line": (b'{"name"', "the order is not understood: "),
    "a place beyond all": (b'{"name":"logs","job":1,"begin":%d}\n' % 2**63, "the order is not"),
}


@pytest.mark.parametrize(("content", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_order_is_answered_in_a_line(path, content, words):
    """Others are served afterwards."""
    with silent(path) as end:
        try:
            end.sendall(content)
            end.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert words.encode() in end.makefile("rb").readline()
    assert order(QueueOrder(name="list"), socket_path=path) == ["ann", "list"]


def test_nobody_there_is_said_at_once(tmp_path):
    """It may come."""
    with pytest.raises(TryAgainError, match="no queue answers at"):
        order(QueueOrder(name="list"), socket_path=tmp_path / "queue.sock")


def test_a_second_hub_takes_no_socket_away(path):
    """Nor does it remove it when it ends; one that nobody serves is taken over."""
    second = QueueSocket(path, Answering())
    with pytest.raises(JobError, match="another hub takes jobs there"):
        asyncio.run(second.listen())
    asyncio.run(second.close())
    assert order(QueueOrder(name="list"), socket_path=path) == ["ann", "list"]
