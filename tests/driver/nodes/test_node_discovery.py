"""nodes.yaml and announced nodes as one view."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from dataclasses import replace

import pytest
from zeroconf import DNSOutgoing, DNSText

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.job import JobConfig
from hetero_hvd.discovery.advert import sign
from hetero_hvd.discovery.listener import (
    MAX_FROM_ALL,
    MAX_FROM_ONE,
    MAX_PACKET_BYTES,
    AdvertListener,
)
from hetero_hvd.driver.nodes.node_discovery import NodeDiscovery, check_tls_file
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.security.cluster_key import make_key, read_key
from tests.discovery.test_advert import as_text, make


@pytest.fixture
def network(tmp_path):
    """A view without a network: (function of settings and nodes, function to hear adverts)."""
    make_key(tmp_path / "key")

    def view(*nodes, **job):
        settings = JobConfig(discover=True, cluster_key_file=str(tmp_path / "key"), **job)
        return NodeDiscovery(settings), ClusterConfig(job=settings, nodes=nodes)

    def hear(found, *adverts, sender="10.0.0.99"):
        key = read_key(tmp_path / "key")
        for advert in adverts:
            text = advert if isinstance(advert, bytes) else as_text(sign(key, advert))
            found._receiver._listener.heard(sender, as_packet(text))
        found.listen()

    return view, hear


def as_packet(text):
    """A multicast packet with one TXT record."""
    packet = DNSOutgoing(0x8400)
    packet.add_answer_at_time(DNSText("x._hetero-hvd._tcp.local.", 16, 1, 120, text), 0)
    return packet.packets()[0]


def announced(number, **more):
    """A fresh advert of a machine of its own."""
    fields = {"name": f"n{number}", "machine": f"{number:032}", "addresses": (f"10.0.0.{number}",)}
    return make(**(fields | {"issued_at_seconds": time.time()} | more))


def test_the_file_wins_and_may_restrict(network):
    """The same name or address is the same node; not allowed, no IPv4 or no slots is left out."""
    view, hear = network
    listed = (NodeConfig(name="n1", slots=1), NodeConfig(name="b", address="10.0.0.2", slots=1))
    found, config = view(*listed, allow="n1,n2,n3,n5,n6")
    hear(found, *(announced(number) for number in (1, 2, 3, 4)))
    hear(found, announced(5, addresses=("fd00::5",)), announced(6, slots=0))
    said = []
    found._receiver._say = found._say = said.append
    for _ in range(2):
        nodes = found.merge(config).nodes
        assert [node.name for node in nodes] == ["n1", "b", "n3"]
    assert [line.partition(":")[0] for line in said] == [
        "n5 is not used",
        "n3 announces itself",
    ], said
    assert nodes[:2] == listed
    assert (nodes[2].launcher, nodes[2].address, nodes[2].port) == ("agent", "10.0.0.3", 9388)


def test_a_machine_that_is_listed_under_another_name_and_address_is_one_node(network):
    """As soon as its worker has said on which machine it is; until the entry goes."""
    view, hear = network
    found, config = view(NodeConfig(name="b", address="10.9.9.9", slots=1))
    hear(found, announced(1), announced(2))
    assert [node.name for node in found.merge(config).nodes] == ["b", "n1", "n2"]
    found.meet({"b": f"{1:032}"})
    assert [node.name for node in found.merge(config).nodes] == ["b", "n2"]
    gone = ClusterConfig(job=config.job, nodes=(NodeConfig(name="c", slots=1),))
    assert [node.name for node in found.merge(gone).nodes] == ["c", "n1", "n2"]


def test_people_are_told_of_a_new_node_once_and_of_a_conflict(network, caplog):
    """What it is made of, and whose advert is not used because somebody else was first."""
    view, hear = network
    said = []
    found, config = view(NodeConfig(name="a", slots=1))
    found._receiver._say = found._say = said.append
    figures = {"matrix product float32": 41.23e9, "Linear 0123": 1234.5}
    hear(found, announced(1, summary="2 x H100", slots=2, version="0.0", figures=figures))
    found.merge(config)
    hear(found, announced(1, summary="2 x H100", slots=2, version="0.0"))
    found.merge(config)
    measured = "matrix product float32 41.2 GFLOP/s; Linear 1.23e+03 samples/s"
    assert said == [f"n1 announces itself: 2 x H100, 2 slots, hetero_hvd 0.0; {measured}"]
    hear(found, announced(2, name="n1"), sender="10.0.0.66")
    assert found.ignored["conflict"] == 1
    assert "from 10.0.0.66 was ignored: another machine has the name or a GPU of n1" in caplog.text


def test_an_entry_with_a_host_name_is_the_node_behind_it(network):
    """Until the name is looked up no node is added: it could be that one. Then others are."""
    view, hear = network
    local = {"name": "a", "address": "localhost", "launcher": "ssh", "slots": 1}

    async def merged():
        found, config = view(NodeConfig(**local))
        hear(found, announced(1, addresses=("127.0.0.1",)), announced(2))
        first = found.merge(config).nodes
        while found._names._pending:
            await asyncio.gather(*found._names._pending.values())
        second = found.merge(config).nodes
        await found.close()
        return [[node.name for node in nodes] for nodes in (first, second)]

    assert asyncio.run(merged()) == [["a"], ["a", "n2"]]


def test_a_burst_of_one_sender_delays_nobody_else(network):
    """Of its 10,000 adverts 32 are checked in a tick; another's is believed in the same tick."""
    view, hear = network
    found, config = view(NodeConfig(name="a", slots=1))
    burst = [as_packet(b"\x05hello")] * 10_000
    for packet in burst:
        found._receiver._listener.heard("10.0.0.66", packet)
    hear(found, announced(1))
    assert [node.name for node in found.merge(config).nodes] == ["a", "n1"]
    counts = {"malformed": MAX_FROM_ONE, "dropped": 10_000 - MAX_FROM_ONE, "conflict": 0}
    assert found.ignored == counts


def test_a_burst_of_many_senders_costs_a_tick_no_more_than_its_budget(network):
    """What is too much or too large is dropped unread and counted; the next tick is free again."""
    view, hear = network
    found, config = view(NodeConfig(name="a", slots=1))
    for number in range(10_000):
        found._receiver._listener.heard(
            f"10.1.{number // 250}.{number % 250}", as_packet(b"\x05hello")
        )
    found._receiver._listener.heard("10.0.0.66", bytes(MAX_PACKET_BYTES + 1))
    assert len(found._receiver._listener._waiting) == MAX_FROM_ALL
    found.listen()
    assert found.ignored["malformed"] == MAX_FROM_ALL
    assert found.ignored["dropped"] == 10_001 - MAX_FROM_ALL
    hear(found, announced(1))
    assert [node.name for node in found.merge(config).nodes] == ["a", "n1"]


def test_who_sends_what_is_not_believed_is_named(network, caplog):
    """The log has the sender's address and the counts, once in 10 s however many come."""
    view, hear = network
    found, _ = view(NodeConfig(name="a", slots=1))
    hear(found, b"\x05hello", b"\x05$(id)", sender="10.0.0.66")
    assert len(caplog.records) == 1
    assert "from 10.0.0.66 was ignored: malformed" in caplog.text


def test_what_is_not_used_is_said_once_where_people_look(network):
    """For each reason; the log has how often."""
    view, hear = network
    said = []
    found, _ = view()
    found._receiver._say = found._say = said.append
    hear(found, announced(1))
    for _ in range(3):
        hear(found, announced(2, name="n1"), announced(3, issued_at_seconds=1e9), b"noise")
    assert [line.partition(" is not used: ")[2][:19] for line in said] == [
        "another machine has",
        "by the clock here i",
        "malformed; more of ",
    ]


TLS_FILES = {
    "missing": (lambda _: None, "No such file"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "open to others": (lambda path: path.touch(0o644), "found mode 0644"),
    "without a certificate": (lambda path: path.touch(0o600), "must hold, in PEM, a private key"),
}


@pytest.mark.parametrize("case", TLS_FILES)
def test_a_tls_file_that_cannot_be_used_is_no_job_that_waits(case, tmp_path):
    """No agent could be reached with it, however many announce themselves."""
    make, words = TLS_FILES[case]
    path = tmp_path / "driver.pem"
    make(path)
    job = JobConfig(discover=True, cluster_key_file="key", tls_file=str(path))
    with pytest.raises(UserError, match=words) as caught:
        check_tls_file(job)
    assert str(caught.value).startswith(str(path))
    check_tls_file(replace(job, discover=False))  # nodes.yaml may never use it


NO_EAR = {
    "a port that is taken": (errno.EADDRINUSE, "job.listen: UDP port 9: ", "Give this one", True),
    "a port of the system's": (errno.EACCES, "job.listen: UDP port 9: ", "give another", False),
    "no more descriptors": (errno.EMFILE, "job.listen: UDP port 9: ", "Too many open", True),
    "no multicast": (None, "job.discover: cannot listen", "no interface can do multicast", True),
}


@pytest.mark.parametrize("case", NO_EAR)
def test_what_cannot_be_heard_begins_with_the_option_that_asks_for_it(network, case, monkeypatch):
    """One line, and whether another try may find it otherwise; no socket stays open."""
    number, beginning, words, may_pass = NO_EAR[case]
    view, _ = network

    def refuse(*_):
        raise OSError(number, os.strerror(number or 0))

    monkeypatch.setattr(AdvertListener, "_open_doors", refuse)
    monkeypatch.setattr(AdvertListener, "_ask_on", refuse)
    found, _ = view(listen=0 if number is None else 9)
    with pytest.raises(JobError) as caught:
        asyncio.run(found.open())
    assert str(caught.value).startswith(beginning)
    assert words in str(caught.value)
    assert caught.value.may_pass == may_pass
    assert not found._receiver._listener._sockets


def test_a_port_that_another_job_has_is_that_of_job_listen(network):
    """For real."""
    view, _ = network
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
        other.bind(("::", 0))
        found, _ = view(listen=other.getsockname()[1])
        with pytest.raises(JobError, match=r"^job\.listen: UDP port .* in use; does another"):
            asyncio.run(found.open())
