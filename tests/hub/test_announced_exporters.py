"""Agents that announce themselves to a hub are found there by Prometheus."""

from __future__ import annotations

import asyncio

import pytest

from hetero_hvd.discovery.receiver import HeardAdvert
from hetero_hvd.hub.announced_nodes import SILENT_SECONDS, AnnouncedNodes
from tests.discovery.test_advert import make
from tests.hub.test_announced_nodes import KEY, asked, packet, send, started, until

EXPORTERS = {
    "one that shows its metrics": ({"exporter": "http"}, "10.0.0.9", "http://10.0.0.9:7"),
    "by TLS": ({"exporter": "https"}, "10.0.0.9", "https://10.0.0.9:7"),
    "by IPv6": ({"exporter": "http", "addresses": ("fd00::9",)}, "fd00::9", "http://[fd00::9]:7"),
    "one without a token": ({}, "10.0.0.9", None),
    "one that has said good-bye": ({"exporter": "http", "leaves": True}, "10.0.0.9", None),
    "of the loopback here": (
        {"exporter": "http", "addresses": ("127.0.0.1",)}, "127.0.0.1", "http://127.0.0.1:7"),
    "of the loopback elsewhere": (
        {"exporter": "http", "addresses": ("127.0.0.1",)}, "10.0.0.9", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPORTERS)
def test_the_exporters_of_those_that_are_there_are_known(kind):
    """Until they are silent."""
    more, sender, url = EXPORTERS[kind]
    nodes = AnnouncedNodes(KEY, "hub", None, 0)
    advert = make(name="alpha", port=7, **({"addresses": ("10.0.0.9",)} | more))
    nodes.heard(HeardAdvert(sender, b"", advert), 0.0)
    assert nodes.exporters() == ({} if url is None else {"alpha": url})
    nodes.forget(SILENT_SECONDS + 1)
    assert nodes.exporters() == {}


def test_prometheus_finds_announced_agents_at_the_hub(tmp_path):
    """Beside the runs, by the name of the node."""
    process, port = started(tmp_path)
    expected = {"targets": ["10.0.0.9:7"], "labels": {"node": "shown", "__scheme__": "http"}}

    async def is_listed():
        found = await asked(process, "targets")  # it hears nothing before it answers
        send(port, packet("shown", exporter="http", addresses=("10.0.0.9",), port=7))
        return expected in found

    try:
        asyncio.run(until(is_listed))
    finally:
        process.kill()
