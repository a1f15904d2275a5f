"""Announcing to an address: whom it names, and what comes there."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time

import pytest

from hetero_hvd.discovery import unicast
from hetero_hvd.discovery.advert import Advert, Verifier, sign
from hetero_hvd.discovery.listener import MAX_FROM_ONE, AdvertListener
from hetero_hvd.discovery.multicast import packet_of
from hetero_hvd.discovery.unicast import GIVEN_TO_HUB, AnnounceTarget, UnicastSender
from hetero_hvd.errors import UserError
from tests.discovery.test_advert import KEY, make


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("driver.lab:9389", AnnounceTarget("driver.lab", 9389)),
        ("10.0.0.1:1", AnnounceTarget("10.0.0.1", 1)),
        (f"{'a' * 63}.lab.:1", AnnounceTarget(f"{'a' * 63}.lab.", 1)),
        ("[fd00::1]:65535", AnnounceTarget("fd00::1", 65535)),
        ("[::ffff:10.0.0.1]:9389", AnnounceTarget("::ffff:10.0.0.1", 9389)),
        ("[fe80::1%eth0]:7000", AnnounceTarget("fe80::1%eth0", 7000)),
        ("[fe80::1%br-lan.5]:7000", AnnounceTarget("fe80::1%br-lan.5", 7000)),
    ],
)
def test_whom_to_tell(text, target):
    """A name or an address, and a port."""
    assert AnnounceTarget.read(text, "--announce-to") == target
    assert str(target) == text


WRONG = ["", "host", "host:", ":9389", "host:0", "host:65536", "host:-1", "host:٣", "fd00::1:9389"]
WRONG += ["[fd00::1]", "[host]:1", "a b:1", "a;b:1", "http://host:1", "host:1/x", "host:1\n"]
WRONG += ["[:::]:1", "256.1.1.1:1", "1.2.3:1", "a..b:1", ".:1", f"{'a' * 64}.b:1", "_a:1"]
WRONG += ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "255.255.255.255:1"]
WRONG += [f"[::ffff:{each}]:1" for each in ("0.0.0.0", "224.0.0.1", "255.255.255.255")]  # noqa: S104 - is refused
WRONG += ["[fe80::1%]:1", "[fe80::1%a b]:1", "[fe80::1%/x]:1", "[%eth0]:1", "fe80::1%eth0:1"]


@pytest.mark.parametrize("text", WRONG)
def test_what_names_nobody_is_refused_in_one_line(text):
    """Nothing of it reaches a resolver."""
    with pytest.raises(UserError, match="must be HOST:PORT") as found:
        AnnounceTarget.read(text, "--announce-to")
    assert "\n" not in str(found.value)


def test_who_gives_the_port_is_named():
    """Of a driver, or of a hub."""
    for more, words in (
        ((), "run --listen PORT"),
        ((), "hub --listen PORT"),
        ((GIVEN_TO_HUB,), "hub --port PORT"),
    ):
        with pytest.raises(UserError, match=f"`hetero-hvd {words}`"):
            AnnounceTarget.read("host", "--hub", *more)


def free_port():
    """A UDP port that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


async def heard(ear, number=1):
    """What has come, when so much has."""
    found = []
    for _ in range(200):
        found += ear.take()
        if len(found) >= number:
            break
        await asyncio.sleep(0.01)
    return found


async def listening(port):
    """An ear at a port of this machine, without multicast."""
    ear = AdvertListener(port)
    ear.ask = lambda: None
    await ear.open()
    return ear


def signed(**more):
    """A packet of a node, signed now."""
    advert = make(issued_at_seconds=time.time(), **more)
    return packet_of(advert.name, advert.port, sign(KEY, advert))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_advert_comes_through_whole(host):
    """Over both protocols and by name; also one of the largest size."""

    async def act():
        port = free_port()
        ear = await listening(port)
        try:
            devices = tuple(f"GPU-{n:036}" for n in range(12))
            packet = signed(devices=devices, addresses=("10.0.0.1", "fd00::1"))
            await UnicastSender(AnnounceTarget(host, port)).send(packet)
            (sender, text), *_ = await heard(ear)
            return sender, Verifier(KEY).check(text, now_seconds=time.time()), devices
        finally:
            await ear.close()

    sender, advert, devices = asyncio.run(act())
    assert sender in {"127.0.0.1", "::1"}
    assert isinstance(advert, Advert)
    assert advert.devices == devices


def test_a_flood_is_dropped_and_counted():
    """As that of multicast."""

    async def act():
        port = free_port()
        ear = await listening(port)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
                for _ in range(MAX_FROM_ONE + 10):
                    end.sendto(signed(), ("127.0.0.1", port))
                end.sendto(b"\0" * 9001, ("127.0.0.1", port))
            for _ in range(100):
                await asyncio.sleep(0.01)
                if ear.dropped >= 11:
                    break
            return len(ear.take()), ear.dropped
        finally:
            await ear.close()

    assert asyncio.run(act()) == (MAX_FROM_ONE, 11)


def test_a_port_that_another_job_has_is_named():
    """Nothing stays open."""

    async def act():
        port = free_port()
        first = await listening(port)
        try:
            with pytest.raises(OSError, match=f"UDP port {port}: Address already in use"):
                await listening(port)
        finally:
            await first.close()
        await (await listening(port)).close()

    asyncio.run(act())


NO_SOCKETS = {
    "a kernel without the protocol": OSError(97, "Address family not supported by protocol"),
    "no descriptor": OSError(24, "Too many open files"),
}


@pytest.mark.parametrize("case", NO_SOCKETS)
def test_no_socket_is_no_end_of_the_agent(case, caplog, monkeypatch):
    """It is told, and tried again."""

    def fail(*_, **__):
        raise NO_SOCKETS[case]

    async def act():
        sender = UnicastSender(AnnounceTarget("127.0.0.1", 9))
        monkeypatch.setattr("hetero_hvd.discovery.unicast.socket.socket", fail)
        await sender.send(signed())

    asyncio.run(act())
    (record,) = caplog.records
    assert NO_SOCKETS[case].strerror in record.getMessage()


def test_a_target_that_cannot_be_told_is_named_once(caplog, monkeypatch):
    """And once again when it can be."""

    async def act():
        port, known = free_port(), socket.getaddrinfo
        ear = await listening(port)
        sender = UnicastSender(AnnounceTarget("nowhere.invalid", port))

        def unknown(*_, **__):
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        for _ in range(3):
            await sender.send(signed())
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda _, *more, **named: known("127.0.0.1", *more, **named)
        )
        for _ in range(3):
            await sender.send(signed())
        try:
            return len(await heard(ear, 3))
        finally:
            await ear.close()

    with caplog.at_level(logging.INFO):
        assert asyncio.run(act()) == 3
    lines = [record.getMessage() for record in caplog.records if "announce" in record.getMessage()]
    assert len(lines) == 2
    assert "cannot announce to nowhere.invalid:" in lines[0]
    assert "Name or service not known" in lines[0]
    assert "announces itself to nowhere.invalid:" in lines[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_closed_is_told_and_that_it_is_open_again(host, caplog):
    """As that of a hub which is away, or the wrong one: nothing else would say so."""

    async def act():
        port = free_port()
        sender = UnicastSender(AnnounceTarget(host, port))
        for _ in range(2):
            await sender.send(signed())
        ear = await listening(port)
        try:
            await sender.send(signed())
            return len(await heard(ear))
        finally:
            await ear.close()

    with caplog.at_level(logging.INFO):
        assert asyncio.run(act()) == 1
    lines = [record.getMessage() for record in caplog.records if "announce" in record.getMessage()]
    assert [line.partition(" ")[0] for line in lines] == ["cannot", "announces"]
    assert "nobody listens at that port" in lines[0]


class NameServer:
    """In place of the resolver: answers, fails or hangs, as told; counts who asks."""

    def __init__(self, monkeypatch):
        self.error = None
        self._monkeypatch = monkeypatch
        self.gate = threading.Event()
        self.gate.set()
        self.num_asked = self.num_waiting = self.most_waiting = 0
        self._known = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def hang(self):
        """Answer nobody, until the gate is open again; nobody waits for long."""
        self._monkeypatch.setattr(unicast, "WAIT_SECONDS", 0.2)
        self.gate.clear()

    def _answer(self, host, *more, flags=0, **named):
        if host != "driver.test":
            return self._known(host, *more, flags=flags, **named)
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(-2, "Name or service not known")
        self.num_asked += 1
        self.num_waiting += 1
        self.most_waiting = max(self.most_waiting, self.num_waiting)
        try:
            self.gate.wait()
            if self.error is not None:
                raise self.error
            return self._known("127.0.0.1", *more, **named)
        finally:
            self.num_waiting -= 1


@pytest.fixture
def name_server(monkeypatch):
    """One that is let go in the end."""
    monkeypatch.setattr(unicast, "WAIT_SECONDS", 30.0)  # also on a busy machine it answers in time
    monkeypatch.setattr(unicast, "LOOK_UP_SECONDS", 0.0)
    server = NameServer(monkeypatch)
    yield server
    server.gate.set()


def test_a_name_server_that_hangs_is_asked_once(name_server, caplog):
    """By one thread, which takes no other's place; nobody waits for it twice, or in the end."""

    async def act():
        port = free_port()
        ear = await listening(port)
        sender = UnicastSender(AnnounceTarget("driver.test", port))
        name_server.hang()
        began = time.monotonic()
        for _ in range(50):
            await sender.send(signed())
        assert time.monotonic() - began < 5  # not 50 times the time for one
        assert (name_server.num_asked, name_server.most_waiting) == (1, 1)
        await asyncio.wait_for(asyncio.to_thread(int), 5)  # the loop's own threads are free
        name_server.gate.set()
        while name_server.num_waiting:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
        await sender.send(signed())
        found = await heard(ear)
        await ear.close()
        return len(found)

    with caplog.at_level(logging.INFO):
        assert asyncio.run(act()) == 1
    lines = [r.getMessage() for r in caplog.records if r.name == unicast.logger.name]
    assert len(lines) == 2
    assert lines[0].endswith("its name is not answered in time")
    assert lines[1].startswith("announces itself to driver.test:")


OUTAGES = {
    "it hangs": (None, "its name is not answered in time"),
    "it fails": (socket.gaierror(-3, "Temporary failure in name resolution"), "Temporary failure"),
    "it knows nothing": (socket.gaierror(-2, "Name or service not known"), "not known"),
}


@pytest.mark.parametrize("case", OUTAGES)
def test_while_names_cannot_be_looked_up_the_last_address_is_told(case, name_server, caplog):
    """A node is not lost because of a name server; that it was is said once, as is its end."""
    name_server.error, words = OUTAGES[case]

    async def act():
        port = free_port()
        ear = await listening(port)
        sender = UnicastSender(AnnounceTarget("driver.test", port))
        error, name_server.error = name_server.error, None
        await sender.send(signed())
        if error is None:
            name_server.hang()
        name_server.error = error
        for _ in range(3):
            await sender.send(signed())
        name_server.error = None
        name_server.gate.set()
        while name_server.num_waiting:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
        await sender.send(signed())
        found = await heard(ear, 5)
        await ear.close()
        return len(found)

    with caplog.at_level(logging.INFO):
        assert asyncio.run(act()) == 5
    lines = [r.getMessage() for r in caplog.records if r.name == unicast.logger.name]
    assert len(lines) == 3
    assert "where it was last" in lines[1]
    assert words in lines[1]
