"""nodes.yaml and announced nodes as one view."""

from __future__ import annotations

import time

import pytest
from zeroconf import DNSText, RecordUpdate

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.job import JobConfig
from hetero_hvd.discovery.advert import sign
from hetero_hvd.discovery.key import make_key, read_key
from hetero_hvd.discovery.multicast import MAX_QUEUED
from hetero_hvd.driver.found import CHECKS_PER_TICK, FoundNodes
from tests.discovery.test_advert import as_text, make


@pytest.fixture
def network(tmp_path):
    """A view without a network: (function of settings and nodes, function to hear adverts)."""
    make_key(tmp_path / "key")

    def view(*nodes, **job):
        settings = JobConfig(discover=True, cluster_key_file=str(tmp_path / "key"), **job)
        return FoundNodes(settings), ClusterConfig(job=settings, nodes=nodes)

    def hear(found, *adverts):
        key = read_key(tmp_path / "key")
        texts = [a if isinstance(a, bytes) else as_text(sign(key, a)) for a in adverts]
        records = [DNSText("x._hetero-hvd._tcp.local.", 16, 1, 120, text) for text in texts]
        found._ear.async_update_records(None, 0.0, [RecordUpdate(r, None) for r in records])
        found.listen()

    return view, hear


def announced(number, **more):
    """A fresh advert of a machine of its own."""
    fields = {"name": f"n{number}", "machine": f"{number:032}", "addresses": (f"10.0.0.{number}",)}
    return make(**(fields | {"issued_at_seconds": time.time()} | more))


def test_the_file_wins_and_may_restrict(network):
    """The same name or address is the same node; not allowed or no IPv4 is left out."""
    view, hear = network
    listed = (NodeConfig(name="n1", slots=1), NodeConfig(name="b", address="10.0.0.2", slots=1))
    found, config = view(*listed, allow="n1,n2,n3,n5")
    hear(found, *(announced(number) for number in (1, 2, 3, 4)))
    hear(found, announced(5, addresses=("fd00::5",)))
    nodes = found.merge(config).nodes
    assert [node.name for node in nodes] == ["n1", "b", "n3"]
    assert nodes[:2] == listed
    assert (nodes[2].launcher, nodes[2].address, nodes[2].port) == ("agent", "10.0.0.3", 9388)


def test_a_burst_costs_a_tick_no_more_than_its_budget(network):
    """Of 10,000 adverts most are dropped, all are counted, and a genuine one after them counts."""
    view, hear = network
    found, config = view(NodeConfig(name="a", slots=1))
    hear(found, *([b"\x05hello"] * 10_000))
    assert found.ignored == {
        "malformed": CHECKS_PER_TICK,
        "dropped": 10_000 - MAX_QUEUED,
        "conflict": 0,
    }
    for _ in range(MAX_QUEUED // CHECKS_PER_TICK):
        found.listen()
    hear(found, announced(1))
    assert [node.name for node in found.merge(config).nodes] == ["a", "n1"]
