"""What an agent shows over HTTP, and to whom."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.server import AgentServer
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.machine.inventory import take_inventory
from tests.hub.tokens import TOKENS, token_files

TOKEN = TOKENS["read"]
SHOWN = b"Authorization: Bearer " + TOKEN


@pytest.fixture
def token(tmp_path):
    """The file of an agent."""
    return token_files(tmp_path, "read")["read"]


async def fetch(port, path, *headers):
    """Status, head and body of a plain GET; status 0 for no answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1".encode(), b"Host: x", *headers, b"", b""]
    writer.write(b"\r\n".join(lines))
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]) if head.startswith(b"HTTP/") else 0, head, body


def ask(token, *requests):
    """The answers to these requests, and how many connections were refused."""

    async def scenario():
        server = AgentServer(bytes(32), Pages(lambda: [NodeSampled(node="alpha", load=0.5)], token))
        port = await server.listen("127.0.0.1", 0)
        answers = [await fetch(port, *request) for request in requests]
        await server.close()
        return answers, server.refused

    return asyncio.run(scenario())


def test_who_shows_the_token_reads_metrics_and_hardware(token):
    """Each is made when asked for; the hardware is that of `hetero-hvd nodes hardware --json`."""
    answers, refused = ask(token, ("/metrics", SHOWN), ("/hardware", SHOWN))
    assert [status for status, *_ in answers] == [200, 200]
    assert b"Content-Type: text/plain; version=" in answers[0][1]
    assert b'hetero_hvd_node_load{node="alpha"} 0.5' in answers[0][2]
    said, found = json.loads(answers[1][2]), take_inventory(Path()).as_dict()
    for part in ("host", "system", "processor", "gpus"):
        assert said[part] == json.loads(json.dumps(found[part]))
    assert refused == 0


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (b"Authorization: Bearer " + b"x" * 20,),
        (b"Authorization: Bearer ",),
        (b"Authorization: Bearer \xff\xfe",),
        (b"Authorization: " + TOKEN,),
        (b"Authorization: Bearer " + TOKEN, b"Authorization: Bearer x"),
    ],
    ids=["none", "wrong", "empty", "not-text", "no-scheme", "two"],
)
def test_nobody_else_learns_that_there_are_pages(token, headers):
    """Without the token they are not found, as everything else; all is counted."""
    answers, refused = ask(token, ("/metrics", *headers), ("/hardware", *headers), ("/etc/passwd",))
    assert [(status, body) for status, _, body in answers] == [(404, b"")] * 3
    assert refused == 3


def test_another_token_is_taken_at_once_and_a_spoilt_file_lets_nobody_in(tmp_path, token):
    """As the page of a run and the hub do."""
    file, other = tmp_path / "read.token", b"Authorization: Bearer " + b"n" * 20

    def codes():
        return [status for status, *_ in ask(token, ("/metrics", SHOWN), ("/metrics", other))[0]]

    assert codes() == [200, 404]
    file.write_bytes(b"n" * 20)
    assert codes() == [404, 200]
    file.chmod(0o644)
    assert codes() == [404, 404]


def test_a_probe_is_answered_and_not_counted(token):
    """By the loop that serves drivers, without a word on the node."""
    answers, refused = ask(token, ("/alive",), ("/alive", b"Authorization: Bearer x"))
    assert [(status, body) for status, _, body in answers] == [(200, b"")] * 2
    assert refused == 0


def test_without_a_token_file_there_are_no_pages():
    """An empty token opens nothing: in plain text nothing is even read."""
    answers, refused = ask(None, ("/metrics", b"Authorization: Bearer "), ("/metrics",))
    assert [(status, body) for status, _, body in answers] == [(0, b""), (0, b"")]
    assert refused == 2
