"""The driver's end of the channels, over real sockets."""

import asyncio
import struct
import urllib.error
import urllib.request
from socket import SO_LINGER, SOL_SOCKET

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hetero_hvd import channel
from hetero_hvd.driver.network import channel_server as server_module
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.workers.credentials import Credentials
from hetero_hvd.messages import Heartbeat, ResetRequested, Stop
from hetero_hvd.security.tls import client_context
from tests.tls_relay import ATTACKS, Relay

JOB = Credentials()


class Desk:
    """Notes what it is told; expects alpha-0 only."""

    def __init__(self):
        self.heard = []
        self.addresses = []
        self.news = asyncio.Event()

    def expects(self, host):
        """See `channel_server.ChannelHandler`."""
        return host == "alpha-0"

    def connected(self, host, address):
        """See `channel_server.ChannelHandler`."""
        self.addresses.append((host, address))

    def received(self, host, message):
        """See `channel_server.ChannelHandler`."""
        self.heard.append((host, message))
        self.news.set()


def serve(scenario):
    """Run a scenario against a server."""

    async def run():
        desk = Desk()
        server = ChannelServer(desk, JOB.tls)
        port = await server.listen("127.0.0.1")
        try:
            await asyncio.wait_for(scenario(server, desk, port), 10)
        finally:
            await server.close()

    asyncio.run(run())


def of_worker(host="alpha-0", job=JOB):
    """The worker's side of TLS."""
    return client_context(job.for_worker(host)["HETERO_HVD_TLS"].encode())


def open_channel(port, tls=None, *, path="/channel"):
    """Connect as a worker does; to be awaited, or entered."""
    return connect(
        f"wss://127.0.0.1:{port}{path}",
        ssl=tls or of_worker(),
        server_hostname=channel.DRIVER_NAME,
        compression=None,
        proxy=None,
    )


def test_worker_and_driver_talk():
    """Messages arrive in order in both directions, under the name in the worker's certificate."""

    async def scenario(server, desk, port):
        socket = await open_channel(port)
        assert socket.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        for step in range(3):
            await socket.send(channel.encode(Heartbeat(applied_steps=step)))
        await desk.news.wait()
        assert server.send("alpha-0", Stop(reason="first"))
        assert server.send("alpha-0", Stop(reason="second"))
        assert channel.from_driver(await socket.recv()) == Stop(reason="first")
        assert channel.from_driver(await socket.recv()) == Stop(reason="second")
        assert desk.heard == [("alpha-0", Heartbeat(applied_steps=step)) for step in range(3)]
        assert desk.addresses == [("alpha-0", "127.0.0.1")]
        assert not server.send("beta-0", Stop(reason="nobody"))
        await socket.close()
        assert server.refused == 0

    serve(scenario)


@pytest.mark.parametrize("host", ["alpha-0.r1", "beta-0", "driver"])
def test_a_worker_that_is_not_expected_is_told_so(host):
    """Replaced, of a node that is gone, or never there: it is counted, and nothing is taken."""

    async def scenario(server, desk, port):
        socket = await open_channel(port, of_worker(host))
        with pytest.raises(ConnectionClosed) as error:
            await socket.recv()
        assert error.value.rcvd.code == channel.NOT_EXPECTED
        assert server.refused == 1
        assert desk.addresses == desk.heard == []

    serve(scenario)


FRAMES = {
    "empty": b"",
    "noise": b"\xff" * 100,
    "text": "text",
    "half a record": channel.encode(Heartbeat(applied_steps=1))[:-1],
    "what only the driver may say": channel.encode(ResetRequested(reason="x")),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_that_is_no_record_ends_the_channel(frame):
    """It is noticed and counted; what came before it counts."""

    async def scenario(server, desk, port):
        socket = await open_channel(port)
        await socket.send(channel.encode(Heartbeat(applied_steps=1)))
        await socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert len(desk.heard) == 1
        assert server.refused == 1

    serve(scenario)


def test_silence_after_the_handshake_is_refused(monkeypatch):
    """A worker that asks for no channel is not waited for."""
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.05)

    async def scenario(server, desk, port):  # noqa: ARG001
        silent = {"ssl": of_worker(), "server_hostname": channel.DRIVER_NAME}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **silent)
        await reader.read()
        assert server.refused == 1
        writer.close()

    serve(scenario)


def test_a_worker_that_connects_again_replaces_its_channel():
    """The newer connection is the one that is used."""

    async def scenario(server, desk, port):  # noqa: ARG001
        first = await open_channel(port)
        second = await open_channel(port)
        with pytest.raises(ConnectionClosed):
            await first.recv()
        server.send("alpha-0", Stop(reason="again"))
        assert channel.from_driver(await second.recv()) == Stop(reason="again")
        await second.close()

    serve(scenario)


def test_the_port_of_the_channels_serves_nothing_else():
    """What is no channel is refused and counted, whoever asks."""

    def fetch(port):
        tls = of_worker()
        tls.check_hostname = False
        urllib.request.urlopen(f"https://127.0.0.1:{port}/status", timeout=5, context=tls)

    async def scenario(server, desk, port):  # noqa: ARG001
        with pytest.raises(urllib.error.HTTPError) as refusal:
            await asyncio.to_thread(fetch, port)
        assert refusal.value.code == 404
        assert server.refused == 1
        refusal.value.close()

    serve(scenario)


def test_a_worker_whose_process_is_lost_is_cut_off():
    """Its channel ends at once."""

    async def scenario(server, desk, port):
        socket = await open_channel(port)
        await socket.send(channel.encode(Heartbeat(applied_steps=1)))
        await desk.news.wait()
        server.cut("alpha-0")
        with pytest.raises(ConnectionClosed):
            await socket.recv()

    serve(scenario)


@pytest.mark.parametrize("linger_seconds", [None, 0], ids=["end", "reset"])
def test_a_worker_that_is_killed_is_no_attack(linger_seconds):
    """The kernel ends its connection without a word of TLS: nothing is counted, nor told."""

    async def scenario(server, desk, port):
        socket = await open_channel(port)
        await socket.send(channel.encode(Heartbeat(applied_steps=1)))
        await desk.news.wait()
        if linger_seconds is not None:
            plain = socket.transport.get_extra_info("socket")
            plain.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, linger_seconds))
        socket.transport.abort()
        while server.send("alpha-0", Stop(reason="still there?")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert server.refused == 0

    serve(scenario)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_who_sits_between_them_can_end_a_channel_and_nothing_else(attack):
    """Only what the worker has said is heard, each once and in order, and the end is counted."""

    async def scenario(server, desk, port):
        async with Relay(port, attack()) as (relay, between):
            socket = await open_channel(between)
            await socket.send(channel.encode(Heartbeat(applied_steps=0)))
            await desk.news.wait()
            relay.is_attacking = True
            for step in range(1, 4):
                await socket.send(channel.encode(Heartbeat(applied_steps=step)))
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            told = [message.applied_steps for _, message in desk.heard]
            assert told in ([0], [0, 1])  # what is repeated was genuine once
            assert server.refused == (attack is not ATTACKS["reflected"])

    serve(scenario)


def test_a_connection_that_was_overheard_is_of_no_use():
    """All that a worker has sent, sent once more: it is refused before its first frame."""

    async def scenario(server, desk, port):
        async with Relay(port) as (spy, between):
            socket = await open_channel(between)
            await socket.send(channel.encode(Heartbeat(applied_steps=1)))
            await desk.news.wait()
            await socket.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(spy.seen))
        await reader.read()
        writer.close()
        assert len(desk.heard) == len(desk.addresses) == 1
        assert server.refused == 1

    serve(scenario)


def test_what_crosses_the_network_tells_nothing():
    """Neither names nor records can be read."""

    async def scenario(server, desk, port):
        async with Relay(port) as (spy, between):
            socket = await open_channel(between)
            await socket.send(channel.encode(Heartbeat(applied_steps=1, phase="backward")))
            await desk.news.wait()
            await socket.close()
        assert server.refused == 0
        for word in (b"alpha-0", b"backward", b"/channel"):
            assert word not in b"".join(spy.seen)

    serve(scenario)


CHANGES = {
    "nothing has changed": None,
    "it is not expected any more": channel.NOT_EXPECTED,
    "a newer one has come": 1000,
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_channel_that_takes_anothers_place_waits_for_its_end(case, monkeypatch):
    """What has changed meanwhile, which may take a second, counts."""
    code = CHANGES[case]

    async def scenario(server, desk, port):
        first = await open_channel(port)
        await first.send(channel.encode(Heartbeat(applied_steps=1)))
        await desk.news.wait()
        close, newer = server_module.Channel.close, []

        async def change(self, *words):
            monkeypatch.setattr(server_module.Channel, "close", close)
            await close(self, *words)
            if case == "it is not expected any more":
                monkeypatch.setattr(desk, "expects", lambda _: False)
            elif case == "a newer one has come":
                newer.append(await open_channel(port))
                await newer[0].send(channel.encode(Heartbeat(applied_steps=2)))
                while desk.heard[1:] == []:  # noqa: ASYNC110 - nobody tells of the second
                    await asyncio.sleep(0.01)

        monkeypatch.setattr(server_module.Channel, "close", change)
        second = await open_channel(port)
        if code is None:
            await second.send(channel.encode(Heartbeat(applied_steps=2)))
        else:
            with pytest.raises(ConnectionClosed) as error:
                await second.recv()
            assert error.value.rcvd.code == code
        is_there = code is None or bool(newer)

        def is_settled():
            is_reached = server.send("alpha-0", Stop(reason="x"))
            return (len(desk.heard), is_reached) == (1 + is_there, is_there)

        while not is_settled():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert len(desk.addresses) == 1 + is_there
        for socket in (first, second, *newer):
            await socket.close()

    serve(scenario)
