"""Announcing to an address: whom it names, and what comes there."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import pytest

from hetero_hvd.discovery.advert import Advert, Verifier, sign
from hetero_hvd.discovery.listener import MAX_FROM_ONE, AdvertListener
from hetero_hvd.discovery.multicast import packet_of
from hetero_hvd.discovery.unicast import AnnounceTarget, UnicastSender
from hetero_hvd.errors import UserError
from tests.discovery.test_advert import KEY, make


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("driver.lab:9389", AnnounceTarget("driver.lab", 9389)),
        ("10.0.0.1:1", AnnounceTarget("10.0.0.1", 1)),
        ("[fd00::1]:65535", AnnounceTarget("fd00::1", 65535)),
        ("[::ffff:10.0.0.1]:9389", AnnounceTarget("::ffff:10.0.0.1", 9389)),
    ],
)
def test_whom_to_tell(text, target):
    """A name or an address, and a port."""
    assert AnnounceTarget.read(text, "--announce-to") == target
    assert str(target) == text


WRONG = ["", "host", "host:", ":9389", "host:0", "host:65536", "host:-1", "host:٣", "fd00::1:9389"]
WRONG += ["[fd00::1]", "[host]:1", "a b:1", "a;b:1", "http://host:1", "host:1/x", "host:1\n"]


@pytest.mark.parametrize("text", WRONG)
def test_what_names_nobody_is_refused_in_one_line(text):
    """Nothing of it reaches a resolver."""
    with pytest.raises(UserError, match="must be HOST:PORT") as found:
        AnnounceTarget.read(text, "--announce-to")
    assert "\n" not in str(found.value)


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
        loop, port = asyncio.get_running_loop(), free_port()
        ear = await listening(port)
        sender = UnicastSender(AnnounceTarget("nowhere.invalid", port))

        async def unknown(*_, **__):
            raise socket.gaierror(-2, "Name or service not known")

        known = loop.getaddrinfo
        monkeypatch.setattr(loop, "getaddrinfo", unknown)
        for _ in range(3):
            await sender.send(signed())
        monkeypatch.setattr(
            loop, "getaddrinfo", lambda _, *more, **named: known("127.0.0.1", *more, **named)
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
