"""The driver's end of the channels: one WebSocket in TLS for each worker."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol

from hetero_hvd import channel
from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import FromDriver, FromWorker
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from hetero_hvd.security.tls import peer_names, server_options, tampering
from hetero_hvd.security.web_socket import (
    ConnectionClosed,
    Request,
    Response,
    Server,
    ServerConnection,
    served,
)

logger = logging.getLogger(__name__)

CHANNEL_PATH = "/channel"
HANDSHAKE_SECONDS = 10.0
MAX_UNSENT_MESSAGES = 1000
NORMAL_CLOSURE, POLICY_VIOLATION = 1000, 1008


class ChannelHandler(Protocol):
    """Who handles what the workers say; called in the loop's thread."""

    def expects(self, host: str) -> bool:
        """Whether the worker that was started under this name still runs."""

    def connected(self, host: str, address: str) -> None:
        """A worker has shown its certificate, from this network address."""

    def received(self, host: str, message: FromWorker) -> None:
        """What it says."""


class Channel:
    """One worker's channel."""

    def __init__(self, socket: ServerConnection, host: str) -> None:
        self.host = host
        self._socket = socket
        self._unsent: asyncio.Queue[FromDriver] = asyncio.Queue(MAX_UNSENT_MESSAGES)

    def send(self, message: FromDriver) -> None:
        """Queue a message; a worker that takes none is cut off instead of filling our memory."""
        try:
            self._unsent.put_nowait(message)
        except asyncio.QueueFull:
            logger.warning("channel: %s does not take its messages", self.host)
            self.cut()

    async def write(self) -> None:
        """Send, in order, until cancelled."""
        with suppress(ConnectionClosed):
            while True:
                await self._socket.send(channel.encode(await self._unsent.get()))

    async def read(self, handle: Callable[[str, FromWorker], None]) -> None:
        """Pass on what comes until the worker leaves.

        Raises:
            ChannelError: What comes is not what the worker has sent, or is not understood.
        """
        try:
            async for frame in self._socket:
                handle(self.host, channel.from_worker(frame))
        except ConnectionClosed as error:
            if found := tampering(error):
                raise ChannelError(f"what comes is not genuine: {found}") from error

    async def close(self, code: int = NORMAL_CLOSURE) -> None:
        """Say good-bye."""
        await self._socket.close(code)

    def cut(self) -> None:
        """End it at once."""
        self._socket.transport.abort()


class ChannelServer:
    """All channels. Used in the loop's thread only.

    Args:
        desk: Who handles what comes.
        tls: With the driver's certificate, and the authority of the workers'.
    """

    def __init__(self, desk: ChannelHandler, tls: ssl.SSLContext) -> None:
        self._tls = server_options(tls)
        self._door = ConnectionLimiter("channel")
        self._num_cut = 0
        self._desk = desk
        self._connections: dict[str, Channel] = {}
        self._servers: list[Server] = []

    @property
    def refused(self) -> int:
        """Connections turned away, before or after their handshake."""
        return self._door.refused + self._num_cut

    async def listen(self, address: str) -> int:
        """Accept connections on one of our addresses.

        Returns:
            The port.
        """
        server = await served(
            self._serve,
            self._door.listen(address, 0),
            self._route,
            logger,
            max_frame_bytes=channel.MAX_FRAME_BYTES,
            open_seconds=HANDSHAKE_SECONDS,
            ping_seconds=None,  # the worker's heartbeat says more: that its Python runs
            **self._tls,
        )
        self._servers.append(server)
        port: int = next(iter(server.sockets)).getsockname()[1]
        return port

    def send(self, host: str, message: FromDriver) -> bool:
        """Queue a message for a worker; False if it has no channel now."""
        connection = self._connections.get(host)
        if connection is None:
            return False
        connection.send(message)
        return True

    def cut(self, host: str) -> None:
        """End a worker's channel, if it has one; it gets no other unless the desk expects it."""
        if (connection := self._connections.get(host)) is not None:
            connection.cut()

    async def close(self) -> None:
        """Close all channels."""
        for server in self._servers:
            server.close()
        self._door.close()
        for server in self._servers:
            await server.wait_closed()

    def _route(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == CHANNEL_PATH:
            return None
        self._door.refuse(connection.remote_address, "not for the channel")
        return connection.respond(HTTPStatus.NOT_FOUND, "")

    async def _serve(self, socket: ServerConnection) -> None:
        peer, host = socket.remote_address, _host_of(socket)
        if not self._desk.expects(host):
            self._door.refuse(peer, f"{host} is not expected")
            await socket.close(channel.NOT_EXPECTED)
            return
        self._door.authenticated(peer)
        try:
            await self._converse(Channel(socket, host), str(peer[0]))
        except ChannelError as error:
            self._num_cut += 1
            logger.warning("channel: %s cut off: %s", host, error)
            await socket.close(POLICY_VIOLATION)

    async def _converse(self, connection: Channel, peer: str) -> None:
        host = connection.host
        earlier = self._connections.get(host)
        self._connections[host] = connection
        try:
            if earlier is not None and not await self._takes_over(connection, earlier):
                return
            self._desk.connected(host, peer)
            writer = asyncio.create_task(connection.write())
            try:
                await connection.read(self._desk.received)
            finally:
                writer.cancel()
        finally:
            if self._connections.get(host) is connection:
                del self._connections[host]

    async def _takes_over(self, connection: Channel, earlier: Channel) -> bool:
        """End a worker's earlier channel; whether the new one still counts after that time."""
        await earlier.close()
        if self._connections.get(connection.host) is not connection:
            return False  # a newer one has come, and closes this one
        if not self._desk.expects(connection.host):
            await connection.close(channel.NOT_EXPECTED)
            return False
        return True


def _host_of(socket: ServerConnection) -> str:
    """The name in the worker's certificate, which the job's authority gave it alone."""
    encrypted: Any = socket.transport.get_extra_info("ssl_object")
    return "".join(peer_names(encrypted))
