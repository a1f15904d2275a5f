"""The agent's port: starts supervisors of workers for drivers of its cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import socket as sockets
import ssl
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any

from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.places import NoPlace, Places
from hetero_hvd.discovery import agent_link as link
from hetero_hvd.errors import ChannelError
from hetero_hvd.exit_codes import EXIT_NO_PLACE, as_exit_code
from hetero_hvd.security.cluster_tls import DRIVER_NAME, for_agent
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from hetero_hvd.security.first_byte import FirstByte
from hetero_hvd.security.tls import peer_names, server_options, tampering
from hetero_hvd.security.web_socket import (
    ConnectionClosed,
    Request,
    Response,
    Route,
    Server,
    ServerConnection,
    State,
    served,
)

logger = logging.getLogger(__name__)

ALIVE = "/alive"
"""Answered with nothing, to everybody: for probes, which would else be refused and counted."""

HANDSHAKE_SECONDS = 5.0
PING_SECONDS = 5.0
END_SECONDS = 7.0
"""For a supervisor whose input ended: its worker's 5 s after SIGTERM, and some more."""

LAST_OUTPUT_SECONDS = 1.0
"""After a supervisor's end: so long a process of its worker's may keep the output open."""

GOING_AWAY, POLICY_VIOLATION = 1001, 1008
MAX_REASON_BYTES = 123
"""Of what who is turned away is told; WebSocket has room for no more."""


class AgentServer:
    """Serves drivers. Used in the loop's thread only.

    Args:
        key: The cluster key.
        pages: What it shows besides; None for nothing.
        tls: Of the user's authority, for pages too; None: certificates follow from the key, and
            pages are in plain text.
        num_slots: Workers that run at once; 0: who holds the key gets nothing started either.

    Attributes:
        started: Supervisors started.
    """

    def __init__(
        self,
        key: bytes,
        pages: Pages | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        num_slots: int = 1,
    ) -> None:
        self._starts_workers = num_slots > 0
        self._places = Places(num_slots)
        self._tls = server_options(tls or for_agent(key))
        self.started = 0
        self._pages = pages
        self._has_plain_pages = tls is None and pages is not None and pages.are_there
        self._door = ConnectionLimiter("agent")
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._leaving = asyncio.Event()
        self._sorter: FirstByte | None = None
        self._servers: list[Server] = []

    @property
    def refused(self) -> int:
        """Connections turned away."""
        return self._door.refused

    @property
    def is_idle(self) -> bool:
        """Whether no supervisor runs, nor any question of a driver."""
        return self._idle.is_set()

    async def listen(self, address: str | None, port: int) -> int:
        """Accept connections.

        Args:
            address: Own address; None for all, IPv4 and IPv6.
            port: 0 for any.

        Returns:
            The port.

        Raises:
            OSError: The address or port cannot be had.
        """
        is_plain = None if self._has_plain_pages else False
        listening = self._door.listen(address, port, is_plain=is_plain)
        found: int = listening.getsockname()[1]
        if self._has_plain_pages:
            self._sorter = FirstByte(listening)
            await self._listen(self._sorter.plain, self._route_page)
            listening = self._sorter.tls
        await self._listen(listening, self._route, **self._tls)
        return found

    async def _listen(self, listening: sockets.socket, route: Route, **tls: Any) -> None:  # noqa: ANN401 - as asyncio has them
        server = await served(
            self._serve,
            listening,
            route,
            logger,
            subprotocol=link.subprotocol(),
            max_frame_bytes=link.MAX_FRAME_BYTES,
            open_seconds=HANDSHAKE_SECONDS,
            ping_seconds=PING_SECONDS,
            **tls,
        )
        self._servers.append(server)

    def offer(self) -> None:
        """Start workers for who asks, and answer questions, as at first."""
        self._places.closed_by = ""
        self._leaving.clear()

    def refuse(self, why: str) -> None:
        """Start no worker and answer no question, though the port is open.

        Args:
            why: For who asks nevertheless.
        """
        self._places.closed_by = why

    async def end_workers(self, timeout_seconds: float) -> None:
        """Let drivers let their workers go; those that still run after this time are ended.

        For use after `refuse`: nobody comes any more.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        self._leaving.set()
        await self._idle.wait()

    async def close(self) -> None:
        """End all connections and the workers behind them."""
        self._leaving.set()
        if self._sorter is not None:
            self._sorter.close()
        for server in self._servers:
            server.close()
        self._door.close()
        for server in self._servers:
            await server.wait_closed()

    async def _route(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == link.PATH:
            why = link.in_conflict(", ".join(request.headers.get_all(link.OFFER)))
            if not why:
                return None
            self._door.refuse(connection.remote_address, why)
            return connection.respond(HTTPStatus.UPGRADE_REQUIRED, why)
        return await self._route_page(connection, request)

    async def _route_page(self, connection: ServerConnection, request: Request) -> Response:
        if request.path == ALIVE:
            self._door.tolerate(connection.remote_address)
            return connection.respond(HTTPStatus.OK, "")
        page = None if self._pages is None else await self._pages.answer(request)
        if page is not None:
            self._door.authenticated(connection.remote_address)
            return page
        self._door.refuse(connection.remote_address, "not for the agent")
        return connection.respond(HTTPStatus.NOT_FOUND, "")

    async def _serve(self, socket: ServerConnection) -> None:
        peer = socket.remote_address
        try:
            start = await asyncio.wait_for(self._first_word(socket), HANDSHAKE_SECONDS)
        except (ChannelError, ConnectionClosed, TimeoutError) as error:
            self._door.refuse(peer, why := str(error) or "no word in time")
            told = why.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            await socket.close(POLICY_VIOLATION, told)
            return
        self._door.authenticated(peer)
        self._num_running += 1
        self._idle.clear()
        try:
            with suppress(ConnectionClosed):
                await self._start(socket, start)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    async def _start(self, socket: ServerConnection, start: link.Start) -> None:
        peer = socket.remote_address[0]
        is_worker = start.what == "worker"
        place = self._places.place(start.job, peer, _Driver(socket))
        try:
            async with place if is_worker else self._places.question():
                logger.info("%s starts: %s", peer, start.what)
                self.started += 1
                await _run(socket, start, self._leaving)
        except NoPlace as error:
            logger.warning("%s asks for a worker of job %r: %s", peer, start.job[:100], error)
            await socket.send(link.encode(link.Data(data=f"{error}\n".encode())))
            await socket.send(link.encode(link.Exited(code=EXIT_NO_PLACE)))

    async def _first_word(self, socket: ServerConnection) -> link.Start:
        if DRIVER_NAME not in peer_names(socket.transport.get_extra_info("ssl_object")):
            raise ChannelError(f"the certificate of who asks is not for `{DRIVER_NAME}`")
        start = link.decode(await socket.recv())
        if not isinstance(start, link.Start):
            raise ChannelError("the first frame must be a start")
        if not self._starts_workers:
            raise ChannelError("this agent starts no workers")
        return start


class _Driver:
    """The driver of a worker; see `places.AgentEnding`."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket

    @property
    def is_ending(self) -> bool:
        """Whether its connection is over."""
        return self._socket.state is not State.OPEN


async def _run(socket: ServerConnection, start: link.Start, leaving: asyncio.Event) -> None:
    """Run a supervisor until it ends, or the agent leaves; then it is gone.

    When the connection ends so does its input, and by that the worker, within the grace that its
    driver has given it.
    """
    with ExitStack() as held:
        process, output = await _supervisor(start, held)
        feeder = asyncio.create_task(_feed(socket, process))
        passing = asyncio.create_task(_pass_on(socket, output))
        left = asyncio.create_task(leaving.wait())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await asyncio.wait({passing}, timeout=LAST_OUTPUT_SECONDS)
                held.close()
                await passing
                await socket.send(link.encode(link.Exited(code=as_exit_code(ended.result()))))
            else:
                await socket.close(GOING_AWAY)
        finally:
            for task in (feeder, passing, left):
                task.cancel()
            await _end(process)


async def _supervisor(start: link.Start, held: ExitStack) -> tuple[Process, asyncio.StreamReader]:
    """Start one; gives it, and what it writes.

    Its output is a pipe of ours: that of asyncio's own ends, and with it a process, only when
    nothing that the worker has started has it open any more.
    """
    reading, writing = os.pipe()
    with ExitStack() as until_started:
        until_started.callback(os.close, writing)
        output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb", 0)
        )
        held.callback(transport.close)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hetero_hvd.supervisor",
            *([] if start.what == "worker" else [f"--{start.what}"]),
            stdin=PIPE,
            stdout=writing,
            stderr=STDOUT,
            start_new_session=True,  # a Ctrl-C is for the agent, who ends the workers in order
        )
    return process, output


async def _pass_on(socket: ServerConnection, output: asyncio.StreamReader) -> None:
    """Send what a supervisor writes; without a driver it is read, too, so that nobody waits."""
    while chunk := await output.read(65536):
        with suppress(ConnectionClosed):
            await socket.send(link.encode(link.Data(data=chunk)))


async def _feed(socket: ServerConnection, process: Process) -> None:
    """Pass the driver's input on; its end, however it comes, ends the worker."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    try:
        async for content in socket:
            frame = link.decode(content)
            if not isinstance(frame, link.Data) or not frame.data:
                break
            process.stdin.write(frame.data)
            await process.stdin.drain()
    except ChannelError as error:
        logger.warning("%s cut off: %s", socket.remote_address[0], error)
    except (ConnectionClosed, ConnectionError) as error:
        if found := tampering(error):
            logger.warning("%s cut off: not genuine: %s", socket.remote_address[0], found)
    finally:
        process.stdin.close()


async def _end(process: Process) -> None:
    """End a supervisor; if it is killed, the kernel kills its worker."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
