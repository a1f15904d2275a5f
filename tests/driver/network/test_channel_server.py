"""The driver's end of the channels, over real sockets."""

import asyncio
import urllib.error
import urllib.request

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hetero_hvd import channel
from hetero_hvd.driver.network import channel_server as server_module
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.messages import Heartbeat, Stop, WorkerId

KEY = channel.new_key()
ALPHA = WorkerId("alpha", 0)


class Desk:
    """Notes what it is told; expects alpha-0 only."""

    def __init__(self):
        self.heard = []
        self.addresses = []
        self.news = asyncio.Event()

    def expects(self, hello):
        """See `channel_server.ChannelHandler`."""
        return hello.host == "alpha-0" and hello.worker == ALPHA

    def connected(self, hello, address):
        """See `channel_server.ChannelHandler`."""
        self.addresses.append((hello.host, address))

    def received(self, host, message):
        """See `channel_server.ChannelHandler`."""
        self.heard.append((host, message))
        self.news.set()


def serve(scenario):
    """Run a scenario against a server."""

    async def run():
        desk = Desk()
        server = ChannelServer(KEY, desk)
        port = await server.listen("127.0.0.1")
        try:
            await asyncio.wait_for(scenario(server, desk, port), 10)
        finally:
            await server.close()

    asyncio.run(run())


async def open_channel(port, *, key=KEY, worker=ALPHA, host="alpha-0"):
    """Connect and shake hands as a worker does."""
    socket = await connect(f"ws://127.0.0.1:{port}/channel", compression=None, proxy=None)
    return socket, await shake_hands(socket, key=key, worker=worker, host=host)


async def shake_hands(socket, *, key=KEY, worker=ALPHA, host="alpha-0"):
    """A worker's part; the session."""
    nonce = await socket.recv()
    frame, own_nonce = channel.answer(key, nonce, worker=worker, host=host)
    await socket.send(frame)
    return channel.confirm(key, nonce, own_nonce, await socket.recv())


def test_worker_and_driver_talk():
    """Messages arrive in order in both directions, under the name that the worker proved."""

    async def scenario(server, desk, port):
        socket, session = await open_channel(port)
        for step in range(3):
            await socket.send(session.seal(Heartbeat(applied_steps=step)))
        await desk.news.wait()
        assert server.send("alpha-0", Stop(reason="first"))
        assert server.send("alpha-0", Stop(reason="second"))
        assert session.open(await socket.recv()) == Stop(reason="first")
        assert session.open(await socket.recv()) == Stop(reason="second")
        assert desk.heard == [("alpha-0", Heartbeat(applied_steps=step)) for step in range(3)]
        assert desk.addresses == [("alpha-0", "127.0.0.1")]
        assert not server.send("beta-0", Stop(reason="nobody"))
        await socket.close()
        assert server.refused == 0

    serve(scenario)


IMPOSTORS = {
    "without the key": {"key": channel.new_key()},
    "not started by this driver": {"host": "mallory-0"},
    "under the name of another worker": {"worker": WorkerId("beta", 0)},
}


@pytest.mark.parametrize("impostor", IMPOSTORS.values(), ids=IMPOSTORS.keys())
def test_an_impostor_is_refused(impostor):
    """It is counted and closed, and neither message nor address is taken from it."""

    async def scenario(server, desk, port):
        async def come():
            socket, _ = await open_channel(port, **impostor)
            await socket.recv()

        with pytest.raises(ConnectionClosed):
            await come()
        assert server.refused == 1
        assert desk.addresses == desk.heard == []

    serve(scenario)


@pytest.mark.parametrize("frame", [b"", b"\xff" * 100, "text", b"\x95" * 10], ids=repr)
def test_noise_in_the_handshake_is_refused(frame):
    """Whatever is not a genuine answer closes the connection."""

    async def scenario(server, desk, port):  # noqa: ARG001
        async with connect(f"ws://127.0.0.1:{port}/channel", proxy=None) as socket:
            await socket.recv()
            await socket.send(frame)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        assert server.refused == 1

    serve(scenario)


def test_a_frame_that_is_not_genuine_ends_the_channel():
    """A replayed frame is noticed, counted, and the channel is closed."""

    async def scenario(server, desk, port):
        socket, session = await open_channel(port)
        frame = session.seal(Heartbeat(applied_steps=1))
        await socket.send(frame)
        await socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert len(desk.heard) == 1
        assert server.refused == 1

    serve(scenario)


def test_silence_in_the_handshake_is_refused(monkeypatch):
    """A client that does not answer is not waited for."""
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.05)

    async def scenario(server, desk, port):  # noqa: ARG001
        async with connect(f"ws://127.0.0.1:{port}/channel", proxy=None) as socket:
            await socket.recv()
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        assert server.refused == 1

    serve(scenario)


def test_a_worker_that_connects_again_replaces_its_channel():
    """The newer connection is the one that is used."""

    async def scenario(server, desk, port):  # noqa: ARG001
        first, _ = await open_channel(port)
        second, session = await open_channel(port)
        with pytest.raises(ConnectionClosed):
            await first.recv()
        server.send("alpha-0", Stop(reason="again"))
        assert session.open(await second.recv()) == Stop(reason="again")
        await second.close()

    serve(scenario)


def test_the_port_of_the_channels_serves_nothing_else():
    """What is no channel is refused and counted."""

    def fetch(port):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)

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
        socket, session = await open_channel(port)
        await socket.send(session.seal(Heartbeat(applied_steps=1)))
        await desk.news.wait()
        server.cut("alpha-0")
        with pytest.raises(ConnectionClosed):
            await socket.recv()

    serve(scenario)


def test_a_worker_that_was_replaced_is_told_so():
    """By a driver that has proved itself; one that does not hold the key hears nothing."""

    async def scenario(server, desk, port):  # noqa: ARG001
        socket, _ = await open_channel(port, host="alpha-0.r1")
        with pytest.raises(ConnectionClosed) as error:
            await socket.recv()
        assert error.value.rcvd.code == channel.NOT_EXPECTED
        assert server.refused == 1

    serve(scenario)
