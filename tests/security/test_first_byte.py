"""One port for TLS and for plain text, on an agent that shows pages."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import tempfile
from pathlib import Path

import pytest

from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.server import AgentServer
from hetero_hvd.discovery import agent_link as link
from hetero_hvd.security import connection_limiter, first_byte
from hetero_hvd.security.first_byte import FirstByte, HandedConnections
from tests.agent.test_pages import TOKEN, fetch
from tests.agent.test_server import KEY, dial
from tests.hub.tokens import token_files
from tests.security.test_connection_limiter import hold

SHOWN = b"Authorization: Bearer " + TOKEN


def on_an_agent_with_pages(scenario):
    """Run it against an agent whose port is open to both."""

    async def run(token):
        server = AgentServer(KEY, Pages(list, token))
        port = await server.listen("127.0.0.1", 0)
        try:
            await asyncio.wait_for(scenario(server, port), 20)
        finally:
            await server.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(token_files(Path(folder), "read")["read"]))


async def has_link(port):
    """Whether a driver of the cluster is served."""
    async with dial(port) as socket:
        await socket.send(link.encode(link.Start(what="gpus")))
        answers = [link.decode(frame) async for frame in socket]
    return answers[-1] == link.Exited(code=0)


def test_pages_are_plain_and_the_link_is_not():
    """On the same port, in any order; what is no page in plain text is not found."""

    async def scenario(server, port):
        assert (await fetch(port, "/metrics", SHOWN))[0] == 200
        assert await has_link(port)
        assert (await fetch(port, "/metrics", SHOWN))[0] == 200
        upgrade = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        assert (await fetch(port, link.PATH, *upgrade, key))[0] == 404
        assert (server.started, server.refused) == (1, 1)

    on_an_agent_with_pages(scenario)


def test_who_says_nothing_keeps_nobody_out(monkeypatch):
    """The newest takes the place of another one, and each has its time only."""
    monkeypatch.setattr(connection_limiter, "MAX_STRANGERS", 8)
    monkeypatch.setattr(first_byte, "FIRST_BYTE_SECONDS", 0.2)

    async def scenario(server, port):
        held = await hold(port, 40)
        assert await has_link(port)
        held += await hold(port, 5, b"\x16") + await hold(port, 5, b"G")
        assert (await fetch(port, "/metrics", SHOWN))[0] == 200
        while server.refused < 40 or server._sorter._silent:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for end in held:
            end.close()

    on_an_agent_with_pages(scenario)


def test_without_file_descriptors_it_tries_again(monkeypatch):
    """A listening socket that cannot accept now is left alone for a while."""
    monkeypatch.setattr(first_byte, "RETRY_SECONDS", 0.05)
    tries = []

    class Full(socket.socket):
        def accept(self):
            tries.append(1)
            if len(tries) < 3:
                raise OSError(24, "Too many open files")
            return super().accept()

    async def answer(reader, writer):
        writer.write(await reader.read(1))
        writer.close()

    async def scenario():
        listening = Full()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        sorter = FirstByte(listening)
        server = await asyncio.start_server(answer, sock=sorter.plain)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"G")
        assert await asyncio.wait_for(reader.read(), 5) == b"G"
        assert len(tries) == 3
        writer.close()
        sorter.close()
        server.close()
        sorter.tls.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("word", [b"", b"G", b"\x16"])
def test_nothing_is_left_open(word):
    """Whoever is there when it closes, also those that no server has accepted."""
    before = len(list(Path("/proc/self/fd").iterdir()))

    async def scenario():
        listening = connection_limiter.ConnectionLimiter("x").listen("127.0.0.1", 0)
        sorter = FirstByte(listening)
        held = await hold(listening.getsockname()[1], 3, word)
        await asyncio.sleep(0.05)
        sorter.close()
        late, other = socket.socketpair()
        for served in (sorter.tls, sorter.plain):
            served.close()
            served.hand(late, None)
        for end in (*held, other):
            with contextlib.suppress(ConnectionError):
                assert end.recv(1) == b""
            end.close()

    asyncio.run(scenario())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_more_are_handed_on_at_once_than_the_bell_can_ring():
    """Nobody waits for anybody: the loop that hands on is the one that accepts."""
    handed = HandedConnections()
    pairs = [socket.socketpair() for _ in range(400)]
    for ours, far in pairs:
        handed.hand(ours, far)

    def rings():
        return bool(select.select([handed], [], [], 0)[0])

    for ours, far in pairs:
        assert rings()
        assert handed.accept() == (ours, far)
        ours.close()
        far.close()
    assert not rings()
    with pytest.raises(BlockingIOError):
        handed.accept()
    handed.close()
