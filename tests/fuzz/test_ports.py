"""Hostile bytes on every port that we open, over real sockets: no traceback, no hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_hvd import channel
from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.server import AgentServer
from hetero_hvd.channel import DRIVER_NAME
from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveState
from hetero_hvd.discovery import agent_link as link
from hetero_hvd.driver.membership import rendezvous
from hetero_hvd.driver.membership.rendezvous import Rendezvous
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.messages import Heartbeat
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.security.cluster_tls import for_driver
from tests.driver.membership.test_rendezvous import Gate, Place
from tests.driver.network.test_channel_server import JOB, Desk, of_worker, open_channel
from tests.fuzz.inputs import broken
from tests.hub.tokens import token_files

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
KEY = bytes(range(32))
REQUESTS = (
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n",
    b"GET /state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b'POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{"target": 1}',
    b"POST /stop HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    b"PUT /global0/1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /global0/1 HTTP/1.1\r\n\r\n",
    b"GET /rank_and_size/alpha-0:0 HTTP/1.1\r\n\r\n",
    b"DELETE /global0/1 HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tttttttttttttttttttt\r\n\r\n",
)


@pytest.fixture
def loop(caplog):
    """A loop in which nothing may go unnoticed."""
    unhandled = []
    made = asyncio.new_event_loop()
    made.set_exception_handler(lambda _, context: unhandled.append(context))
    yield made
    made.close()
    assert unhandled == []
    assert [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR] == []


def frame(payload, *, opcode=2, is_masked=True):
    """A WebSocket frame as a client sends it."""
    mask = bytes(4) if is_masked else b""  # masking with zeros changes nothing
    length = len(payload)
    size = bytes([length | 128 * is_masked]) if length < 126 else None
    size = size or bytes([126 | 128 * is_masked]) + struct.pack(">H", length)
    return bytes([128 | opcode]) + size + mask + payload


async def talk(port, content, tls=None, name=DRIVER_NAME):
    """Send, end our side, and read until the other ends: all that it said, without TLS."""
    options = {"ssl": tls, "server_hostname": name} if tls else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(content)
            if tls is None:
                writer.write_eof()
                return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
    return b""


FRAMES = st.builds(
    frame,
    broken(channel.encode(Heartbeat(applied_steps=1)), b"\x81\xa4type"),
    opcode=st.integers(0, 15),
    is_masked=st.booleans(),
)


def test_the_channel_and_its_frames(loop):
    """Noise instead of TLS; from a worker broken requests and any frames after a good one."""
    server = ChannelServer(desk := Desk(), JOB.tls)
    port = loop.run_until_complete(server.listen("127.0.0.1"))
    hello, tls = UPGRADE % b"/channel", of_worker()

    def joined(frames):
        return hello + b"".join(frames)

    @QUICK
    @given(st.one_of(broken(hello), st.lists(FRAMES, max_size=4).map(joined)))
    def attack(content):
        loop.run_until_complete(talk(port, content))
        assert desk.addresses == []

    @QUICK
    @given(st.one_of(broken(hello), st.lists(FRAMES, max_size=4).map(joined)))
    def betray(content):
        loop.run_until_complete(talk(port, content, tls))

    attack()
    betray()
    assert {(host, type(message)) for host, message in desk.heard} <= {("alpha-0", Heartbeat)}
    assert server.refused > 60

    async def a_worker_still_gets_in():
        socket = await open_channel(port)
        await asyncio.gather(server.close(), socket.wait_closed())

    loop.run_until_complete(a_worker_still_gets_in())


def test_the_agent_and_its_frames(loop, tmp_path):
    """Noise in plain text and as TLS; also what a driver of the cluster sends starts nothing."""
    server = AgentServer(KEY, Pages("alpha", token_files(tmp_path, "read")["read"]))
    port = loop.run_until_complete(server.listen("127.0.0.1", 0))
    hello, tls = UPGRADE % link.PATH.encode(), for_driver(KEY)
    records = [link.Data(data=b"x"), link.Exited(code=0), {"type": "Start", "what": "shell"}, [], 1]
    payloads = broken(*map(msgspec.msgpack.encode, records)).map(frame)

    @QUICK
    @given(st.one_of(broken(hello, *REQUESTS, b"\x16\x03\x01"), FRAMES.map(lambda f: hello + f)))
    def attack(content):
        loop.run_until_complete(talk(port, content))

    @QUICK
    @given(st.one_of(broken(hello, *REQUESTS), payloads.map(lambda p: hello + p)))
    def betray(content):
        loop.run_until_complete(talk(port, content, tls.context, tls.name))

    attack()
    betray()
    assert server.started == 0
    assert server.refused > 60
    loop.run_until_complete(server.close())


def test_the_rendezvous(loop, monkeypatch):
    """From an address that is trusted, so that every request is read."""
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.02)
    gate = Gate(["alpha-0", "beta-0"])

    async def open_rendezvous():
        server = Rendezvous()
        server.attach(gate)
        server.allow("127.0.0.1")
        server.init([Place("alpha-0"), Place("beta-0")])
        return server, await server.listen("127.0.0.1", "alpha-0")

    server, port = loop.run_until_complete(open_rendezvous())
    gate.opened.set()  # nobody waits in the barrier
    loop.run_until_complete(talk(port, REQUESTS[4]))  # nor for this value

    @QUICK
    @given(broken(*REQUESTS))
    def attack(content):
        answer = loop.run_until_complete(talk(port, content))
        assert not answer or answer.startswith(b"HTTP/1.1 ")

    attack()
    assert server.refused > 0
    assert loop.run_until_complete(talk(port, REQUESTS[5])).startswith(b"HTTP/1.1 200")
    server.close()


def test_the_page(loop, tmp_path):
    """No request without the token gives an order, or makes the server fail."""
    orders = []
    (tmp_path / "token").write_text("o" * 20)
    (tmp_path / "token").chmod(0o600)
    web = Web(JobConfig(http_operate_token_file=str(tmp_path / "token")), tmp_path)
    sources = Sources(
        state=lambda: LiveState(run_id="r", state="training"),
        num_events=lambda: 0,
        status=dict,
        targets=list,
        drain=lambda target: orders.append(target) or "",
        stop=lambda: orders.append("stop") or "",
    )
    loop.run_until_complete(web.listen(sources))
    port = int(web.target.rpartition(":")[2])

    @QUICK
    @given(broken(*(request for request in REQUESTS if b"/events" not in request)))
    def attack(content):
        answer = loop.run_until_complete(talk(port, content))
        assert not answer.startswith(b"HTTP/1.1 5")

    attack()
    assert orders == []
    assert loop.run_until_complete(talk(port, REQUESTS[1])).startswith(b"HTTP/1.1 200")
    loop.run_until_complete(web.close())
