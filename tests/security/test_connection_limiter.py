"""A port that those who never say who they are cannot fill."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.security import connection_limiter as doors
from tests.driver.network.test_channel_server import JOB, Desk, of_worker, open_channel


async def hold(port, number, words=b""):
    """So many connections that say no more than this; the sockets."""
    held = []
    for _ in range(number):
        end = socket.socket()
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", port))
        if words:
            await asyncio.get_running_loop().sock_sendall(end, words)
        held.append(end)
    return held


def first_words():
    """With which a client begins TLS, all of them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        of_worker().wrap_bio(incoming, outgoing, server_hostname="driver").do_handshake()
    return outgoing.read()


WORDS = {
    "silence": b"",
    "plain text": b"GET /channel HTTP/1.1\r\nHost: ",
    "half of its first words": first_words()[:50],
    "its first words": first_words(),
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_half_open_connections_keep_nobody_out(words, monkeypatch):
    """The newest takes the place of another one; a worker gets in, and the end is not delayed."""
    monkeypatch.setattr(doors, "MAX_STRANGERS", 8)

    async def scenario():
        server = ChannelServer(desk := Desk(), JOB.tls)
        port = await server.listen("127.0.0.1")
        held = await hold(port, 40, words)
        worker = await open_channel(port)
        held += await hold(port, 40, words)
        assert desk.addresses == [("alpha-0", "127.0.0.1")]
        assert len(server._door._strangers) <= 8
        assert server.refused >= 64
        pong = await worker.ping()
        await asyncio.wait_for(pong, 5)
        await asyncio.gather(asyncio.wait_for(server.close(), 5), worker.wait_closed())
        for end in held:
            end.close()

    asyncio.run(scenario())


def open_files():
    """What this process has open, by kind, and the threads that may have opened it."""
    found = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[path.readlink().name.partition(":")[0]] += 1
    return dict(found), [thread.name for thread in threading.enumerate()]


def test_a_flood_takes_no_file_descriptors(monkeypatch, caplog):
    """More connections than there are file descriptors: all are counted, a worker gets in."""
    monkeypatch.setattr(doors, "MAX_STRANGERS", 16)
    num_open, rounds = 100, 3
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = len(list(Path("/proc/self/fd").iterdir())) + num_open + 2 * doors.MAX_STRANGERS + 20

    async def scenario():
        server = ChannelServer(Desk(), JOB.tls)
        port = await server.listen("127.0.0.1")
        for _ in range(rounds):
            held = await hold(port, num_open)
            worker = await open_channel(port)
            for end in held:
                end.close()
        assert server.refused >= rounds * num_open - doors.MAX_STRANGERS
        await asyncio.gather(server.close(), worker.wait_closed())

    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, limits[1]))
    try:
        asyncio.run(scenario())
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        error.add_note(f"{enough} are allowed, and open are {open_files()}")
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len([record for record in caplog.records if "refused" in record.message]) == 1


def test_a_stranger_cannot_make_us_keep_much():
    """First words of TLS that announce 16 MiB end its connection."""

    async def scenario():
        server = ChannelServer(Desk(), JOB.tls)
        port = await server.listen("127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(16380))
        assert len(await reader.read()) < 20
        writer.close()
        assert server.refused == 1
        await server.close()

    asyncio.run(scenario())


def test_a_flood_from_one_address_cuts_off_nobody_of_another(monkeypatch):
    """Who shakes hands slowly is not the one that makes room."""
    monkeypatch.setattr(doors, "MAX_STRANGERS", 8)
    monkeypatch.setattr(doors, "BURST", 99)
    limiter, ends = doors.ConnectionLimiter("x"), []
    with limiter.listen("127.0.0.1", 0) as listening:
        listening.setblocking(True)
        for address in ("127.0.0.2", "127.0.0.3", *["127.0.0.4"] * 30):
            ends.append(socket.create_connection(listening.getsockname(), 5, (address, 0)))
            ends.append(listening.accept()[0])
    left = [peer[0] for peer in limiter._strangers]
    assert left == ["127.0.0.2", "127.0.0.3", *["127.0.0.4"] * 6]
    assert limiter.refused == 24
    for end in ends:
        end.close()


class Arrival:
    """A connection, as the limiter has it."""

    def __init__(self, address, port):
        self.peer = (address, port)
        self.is_tolerated = False
        self.why_not = ""
        self.is_cut = False

    def shutdown(self, _how):
        """The limiter cuts it off."""
        self.is_cut = True


CROWDS = {"of one address": lambda _: "10.0.0.1", "of as many addresses": lambda n: f"10.0.{n}"}


@pytest.mark.parametrize("address", CROWDS.values(), ids=CROWDS)
def test_of_a_crowd_that_comes_too_fast_some_are_served(address, monkeypatch):
    """Each needs twice the time in which as many others come as there are places."""
    monkeypatch.setattr(doors, "COLLECT_EVERY", 10**9)  # pytest has a large heap
    num_places, num_coming = 64, 4000
    limiter = doors.ConnectionLimiter("x", num_places, num_places)
    crowd = [Arrival(address(n), n) for n in range(num_coming)]
    served = 0
    for number, one in enumerate(crowd):
        limiter.came(one)
        earlier = crowd[max(0, number - 2 * num_places)]
        if earlier.peer in limiter._strangers and number >= 2 * num_places:
            limiter.authenticated(earlier.peer)
            served += 1
        assert not one.is_cut
        assert len(limiter._strangers) <= num_places
    assert num_coming / 20 < served < num_coming / 2
    assert limiter.refused + served + len(limiter._strangers) == num_coming


LIMITS = {"an ordinary limit": (1024, 256), "a driver's": (16384, 1024), "a tiny one": (2, 1)}


@pytest.mark.parametrize("case", LIMITS)
def test_strangers_take_a_quarter_of_the_file_descriptors_at_most(case, monkeypatch):
    """However few there are."""
    soft, expected = LIMITS[case]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert doors.ConnectionLimiter("x")._max_strangers == expected


GONE = {
    "plain text to TLS": (
        False,
        b"GET / HTTP/1.1\r\n\r\n",
        "spoken plain text, and this port speaks TLS",
    ),
    "TLS to plain text": (True, first_words(), "spoken TLS, and this port speaks plain text"),
    "nothing to TLS": (False, b"", "gone without a word"),
    "nothing to plain text": (True, b"", "gone without a word"),
    "a broken handshake": (False, first_words()[:50], "TLS failed or was broken off"),
    "half a request": (True, b"GET / HT", "gone before it has shown who it is"),
    "half a request where both are spoken": (None, b"GET / HT", "gone before it has shown"),
}


@pytest.mark.parametrize(("is_plain", "words", "told"), GONE.values(), ids=GONE)
def test_who_goes_is_told_by_what_it_has_spoken(is_plain, words, told, caplog):
    """Not that it may have been one thing or another."""

    async def answer(reader, writer):
        await reader.read()
        writer.close()

    async def scenario():
        limiter = doors.ConnectionLimiter("x")
        listening = limiter.listen("127.0.0.1", 0, is_plain=is_plain)
        tls = JOB.tls if is_plain is False else None
        server = await asyncio.start_server(answer, sock=listening, ssl=tls)
        (end,) = await hold(listening.getsockname()[1], 1, words)
        end.shutdown(socket.SHUT_WR)
        while not limiter.refused:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        end.close()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    (line,) = [record.getMessage() for record in caplog.records if record.name == doors.__name__]
    assert told in line
