"""Every name that a node may have can be announced, and stays another one than all others."""

from __future__ import annotations

import asyncio

import pytest
from zeroconf import DNSOutgoing

from hetero_hvd.discovery import multicast
from hetero_hvd.discovery.multicast import AdvertPublisher, adverts_in, packet_of
from hetero_hvd.messages import NODE_NAME

NAMES = {
    "short": "a",
    "as long as a label": "a" * 63,
    "longer than a label": "a" * 64,
    "another as long": "a" * 63 + "b",
    "with dots": "alpha.example.org",
    "as long, with dots": "a." * 31 + "bc",
    "two dots": "a..b",
    "dash and dot": "a-." + "b" * 61,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_packet_takes_every_name(name):
    """What was said is in it."""
    assert NODE_NAME.fullmatch(name)
    (text,) = adverts_in(packet_of(name, 9388, {"0": b"said"}))
    assert text == b"\x060=said"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_announcement_takes_every_name(monkeypatch, name):
    """Both of the service and of its host."""
    said = []

    class Zeroconf:
        async def async_register_service(self, info, **_):
            packet = DNSOutgoing(0x8400)
            for record in (info.dns_service(), info.dns_text(), info.dns_pointer()):
                packet.add_answer_at_time(record, 0)
            said.extend(packet.packets())
            return asyncio.sleep(0)

    monkeypatch.setattr(multicast, "AsyncZeroconf", Zeroconf)
    publisher = AdvertPublisher(name, 9388)
    asyncio.run(publisher.say(("127.0.0.1",), lambda: {"0": b"said"}, network=None))
    assert [adverts_in(packet) for packet in said] == [[b"\x060=said"]]


def test_names_stay_different():
    """Where they are too long, too."""
    assert len({packet_of(name, 1, {"0": b""}) for name in NAMES.values()}) == len(NAMES)
