"""The agent's port: starts supervisors of workers for who proves to hold the cluster key."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import suppress
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.places import NoPlace, Places
from hetero_hvd.discovery import encrypted_link as link
from hetero_hvd.errors import ChannelError
from hetero_hvd.exit_codes import EXIT_NO_PLACE, as_exit_code
from hetero_hvd.security.connection_limiter import ConnectionLimiter, Warnings
from hetero_hvd.security.tls import server_options

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
PING_SECONDS = 5.0
END_SECONDS = 7.0
"""For a supervisor whose input ended: its worker's 5 s after SIGTERM, and some more."""

POLICY_VIOLATION = 1008


class AgentServer:
    """Serves drivers. Used in the loop's thread only.

    Args:
        key: The cluster key.
        pages: What it shows besides; None for nothing.
        tls: Both ends then show certificates as well; None for frames that are encrypted only.
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
        self._tls = server_options(tls)
        self.started = 0
        self._pages = pages
        self._door = ConnectionLimiter("agent")
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._key = key
        self._server: Server | None = None

    @property
    def refused(self) -> int:
        """Connections turned away."""
        return self._door.refused

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
        self._server = await serve(
            self._serve,
            sock=self._door.listen(address, port),
            process_request=self._route,
            max_size=link.MAX_FRAME_BYTES,
            compression=None,
            open_timeout=HANDSHAKE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=1,
            logger=Warnings(logger, {}),
            **self._tls,
        )
        found: int = next(iter(self._server.sockets)).getsockname()[1]
        return found

    async def wait_until_idle(self, timeout_seconds: float) -> None:
        """Until no supervisor runs, or the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)

    async def close(self) -> None:
        """End all connections and the workers behind them."""
        if self._server is not None:
            self._server.close()
            self._door.close()
            await self._server.wait_closed()

    async def _route(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == link.PATH:
            return None
        page = None if self._pages is None else await self._pages.answer(request)
        if page is not None:
            self._door.authenticated(connection.remote_address)
            return page
        self._door.refuse(connection.remote_address, "not for the agent")
        return connection.respond(HTTPStatus.NOT_FOUND, "")

    async def _serve(self, socket: ServerConnection) -> None:
        peer = socket.remote_address
        try:
            session, start = await asyncio.wait_for(self._handshake(socket), HANDSHAKE_SECONDS)
        except (ChannelError, ConnectionClosed, TimeoutError) as error:
            self._door.refuse(peer, str(error) or "no answer in time")
            await socket.close(POLICY_VIOLATION)
            return
        self._door.authenticated(peer)
        self._num_running += 1
        self._idle.clear()
        try:
            with suppress(ConnectionClosed):
                await self._start(socket, session, start)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    async def _start(self, socket: ServerConnection, session: link.Link, start: link.Start) -> None:
        peer = socket.remote_address[0]
        is_worker = start.what == "worker"
        place = self._places.place(start.job, peer, _Driver(socket))
        try:
            async with place if is_worker else self._places.question():
                logger.info("%s starts: %s", peer, start.what)
                self.started += 1
                await _run(socket, session, start)
        except NoPlace as error:
            logger.warning("%s asks for a worker of job %r: %s", peer, start.job[:100], error)
            await socket.send(session.seal(link.Data(data=f"{error}\n".encode())))
            await socket.send(session.seal(link.Exited(code=EXIT_NO_PLACE)))

    async def _handshake(self, socket: ServerConnection) -> tuple[link.Link, link.Start]:
        own = link.nonce()
        await socket.send(own)
        theirs = await socket.recv()
        if isinstance(theirs, str):
            raise ChannelError("not a driver of hetero_hvd")
        session = link.Link(self._key, "agent", own + theirs)
        start = session.open(await socket.recv())
        if not isinstance(start, link.Start):
            raise ChannelError("the first frame must be a start")
        if not self._starts_workers:
            raise ChannelError("this agent starts no workers")
        return session, start


class _Driver:
    """The driver of a worker; see `places.AgentEnding`."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket

    @property
    def is_ending(self) -> bool:
        """Whether its connection is over."""
        return self._socket.state is not State.OPEN


async def _run(socket: ServerConnection, session: link.Link, start: link.Start) -> None:
    """Run a supervisor until it or the connection ends; then neither is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hetero_hvd.supervisor",
        *([] if start.what == "worker" else [f"--{start.what}"]),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,  # a Ctrl-C is for the agent, who ends the workers in order
    )
    feeder = asyncio.create_task(_feed(socket, session, process))
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    try:
        while chunk := await process.stdout.read(65536):
            await socket.send(session.seal(link.Data(data=chunk)))
        await socket.send(session.seal(link.Exited(code=await _exit_code(process))))
    finally:
        feeder.cancel()
        await _end(process)


async def _feed(socket: ServerConnection, session: link.Link, process: Process) -> None:
    """Pass the driver's input on; its end, however it comes, ends the worker."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    try:
        async for sealed in socket:
            frame = session.open(sealed)
            if not isinstance(frame, link.Data) or not frame.data:
                break
            process.stdin.write(frame.data)
            await process.stdin.drain()
    except (ConnectionClosed, ConnectionError):
        pass
    except ChannelError as error:
        logger.warning("%s cut off: %s", socket.remote_address[0], error)
    finally:
        process.stdin.close()


async def _exit_code(process: Process) -> int:
    code = await process.wait()
    return as_exit_code(code)


async def _end(process: Process) -> None:
    """End a supervisor; if it is killed, the kernel kills its worker."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
