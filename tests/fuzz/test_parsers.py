"""Hostile input to what reads it, without sockets: many more examples for the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import example, given, settings

from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.discovery.advert import Verifier, sign
from hetero_hvd.discovery.listener import AdvertListener
from hetero_hvd.driver.membership.http_requests import MAX_HEAD_BYTES, RequestError, read_request
from hetero_hvd.errors import ConfigError
from tests.cluster.attacker import packet_of
from tests.discovery.test_advert import KEY, NOW, as_text, make
from tests.fuzz.inputs import broken

MANY = settings(max_examples=200, deadline=None)
ADVERT = as_text(sign(KEY, make()))
NODES = b'job: {min_np: 2}\nnodes:\n  - name: a\n    env: {A: "\\x41"}\n    devices: [0, GPU-1]\n'
YAML = (NODES, b'"\\U0010ffff"', b"%YAML 1.1\n---\n", b"? - !!x &a *a |+\n", b"{[,]}: 'x'\n")


@MANY
@given(broken(packet_of(ADVERT), packet_of(b"\x05hello", ADVERT), b"\xc0\x0c", ADVERT))
def test_packets_and_the_adverts_in_them(packet):
    """A packet gives nothing, adverts that are genuine whole, or reasons to ignore them."""
    ear, verifier = AdvertListener(), Verifier(KEY)
    ear.heard("10.0.0.66", packet)
    for sender, text in ear.take():
        assert sender == "10.0.0.66"
        verdict = verifier.check(text, now_seconds=NOW)
        assert verdict == make() or verdict in {"malformed", "of another key", "replayed"}


@MANY
@given(broken(b"GET /a/b HTTP/1.1\r\n\r\n", b"PUT /a/b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"))
def test_requests_of_the_rendezvous(content):
    """A request within the limits, or one of two errors; never a wait for what cannot come."""

    async def read():
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        reader.feed_data(content)
        reader.feed_eof()
        return await asyncio.wait_for(read_request(reader), 5)

    try:
        request = asyncio.run(read())
    except (RequestError, EOFError):
        return
    assert request.scope.isprintable()
    assert request.key.isprintable()
    assert request.body in content


@MANY
@given(broken(*YAML))
@example(b'nodes: "\\U99999999"')
@example(b"%YAML " + b"9" * 5000 + b".1\n---\n")
@example(b'nodes: [{name: a, env: {A: "\\ud800"}}]')
def test_bytes_as_nodes_yaml(content):
    """Settings that can be written to disk, or problems that name the file."""
    try:
        cluster = parse_cluster([(Path("F"), content)], environment={}, flags={})
    except ConfigError as error:
        assert all(p.startswith("F:") and p.isprintable() for p in error.problems)  # noqa: PT017
    else:
        assert repr(cluster).encode()
