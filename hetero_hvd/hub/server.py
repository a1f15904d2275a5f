"""The hub's port: takes samples of agents, and orders of who holds the cluster key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from hetero_hvd.core.recording.sequences import FIRST, MAX_NUMBER
from hetero_hvd.core.recording.sessions import wanted_seconds
from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS
from hetero_hvd.discovery import hub_link as link
from hetero_hvd.errors import ChannelError, MalformedDataError, UserError
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.storage.store import NodeBatch, SampleStore
from hetero_hvd.messages import NODE_NAME
from hetero_hvd.run.recordings.frames import read_told
from hetero_hvd.security.cluster_tls import for_hub
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from hetero_hvd.security.tls import server_options
from hetero_hvd.security.web_socket import (
    ConnectionClosed,
    Request,
    Response,
    Server,
    ServerConnection,
    served,
)
from hetero_hvd.version import __version__

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
FIRST_WORD_SECONDS = 10.0
PING_SECONDS = 15.0
MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS = 128, 64
"""Who has not said hello, in all and of one address. Of a thousand agents that come back at once
some are cut off by others, and try again."""

COMMIT_SECONDS = 0.05
"""Between two writes to the disk: what came meanwhile goes together."""

Command = Callable[[str, dict[str, Any]], Awaitable[Any]]


class _WaitingBatch(NamedTuple):
    """A batch that is not stored yet, and who waits for that."""

    batch: NodeBatch
    stored: asyncio.Future[int]


def _check(batch: link.SampleBatch) -> None:
    """Take nothing in that could not be stored, or read afterwards.

    Raises:
        ChannelError: There is such a thing in it.
    """
    if len(batch.samples) != len(batch.times_seconds):
        raise ChannelError("a batch with other times than samples")
    ranges = [(batch.first, max(batch.first, batch.first + len(batch.samples) - 1))]
    ranges += [(each.first, each.last) for each in batch.dropped]
    if not all(FIRST <= first <= last <= MAX_NUMBER for first, last in ranges):
        raise ChannelError(
            f"a batch with numbers that are none: they are from {FIRST} to {MAX_NUMBER}"
        )
    streams = [batch.stream, *(each.stream for each in batch.dropped)]
    if not all(1 <= len(stream) <= link.MAX_STREAM for stream in streams):
        raise ChannelError(f"a batch of a stream that is none: 1 to {link.MAX_STREAM} characters")
    times = [*batch.times_seconds, batch.offset_seconds]
    if not all(abs(each) <= MAX_TIME_SECONDS for each in times):
        raise ChannelError("a batch with a time that is none")
    try:
        for sample in batch.samples:
            read_told(sample)
    except MalformedDataError as error:
        raise ChannelError(f"a batch with a sample that {error}") from error


class HubServer:
    """Serves agents and commands. Used in the loop's thread only.

    Args:
        key: The cluster key.
        store: Takes the samples.
        fleet: Is told who was heard.
        command: Carries out an order; what it raises of `UserError` is the answer.
    """

    def __init__(self, key: bytes, store: SampleStore, fleet: Fleet, command: Command) -> None:
        self._tls = server_options(for_hub(key))
        self._store = store
        self._fleet = fleet
        self._command = command
        self._door = ConnectionLimiter("hub", MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS)
        self._waiting: list[_WaitingBatch] = []
        self._news = asyncio.Event()
        self._server: Server | None = None
        self._committer: asyncio.Task[None] | None = None
        self._is_full = False
        self._senders: dict[str, ServerConnection] = {}
        self.num_connected = 0

    @property
    def refused(self) -> int:
        """Connections turned away."""
        return self._door.refused

    async def listen(self, address: str | None, port: int) -> int:
        """Accept connections; gives the port.

        Raises:
            OSError: The address or port cannot be had.
        """
        listening = self._door.listen(address, port)
        found: int = listening.getsockname()[1]
        self._server = await served(
            self._serve,
            listening,
            self._route,
            logger,
            max_frame_bytes=link.MAX_FRAME_BYTES,
            open_seconds=HANDSHAKE_SECONDS,
            ping_seconds=PING_SECONDS,
            **self._tls,
        )
        self._committer = asyncio.create_task(self._commit())
        return found

    def look(self) -> None:
        """Raise what has ended the writing to the disk, if that has ended."""
        if self._committer is not None and self._committer.done():
            self._committer.result()

    async def close(self) -> None:
        """End all connections; what was not acknowledged comes again."""
        if self._server is not None:
            self._server.close()
            self._door.close()
            await self._server.wait_closed()
        if self._committer is not None:
            self._committer.cancel()
            with suppress(asyncio.CancelledError):
                await self._committer

    async def _route(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == link.PATH:
            return None
        self._door.refuse(connection.remote_address, "not for the hub")
        return connection.respond(HTTPStatus.NOT_FOUND, "")

    async def _serve(self, socket: ServerConnection) -> None:
        peer = socket.remote_address
        with suppress(ConnectionClosed):
            try:
                async with asyncio.timeout(FIRST_WORD_SECONDS):
                    hello = await self._greeted(socket)
            except (ChannelError, TimeoutError) as error:
                words = str(error) or "no word in time"
                self._door.refuse(peer, words)
                await socket.send(link.encode(link.HubRefusal(words=words)))
                return
            self._door.authenticated(peer)
            self.num_connected += 1
            try:
                await (self._take(socket, hello.node) if hello.node else self._obey(socket))
            except ChannelError as error:
                logger.warning("%s cut off: %s", peer[0], error)
                await socket.send(link.encode(link.HubRefusal(words=str(error))))
            finally:
                self.num_connected -= 1
                if self._senders.get(hello.node) is socket:
                    del self._senders[hello.node]

    async def _greeted(self, socket: ServerConnection) -> link.Hello:
        """The first frame of a connection, answered.

        Raises:
            ChannelError: It is none that this hub talks with.
        """
        hello = link.decode(await socket.recv())
        received_at = self._store.now_seconds()
        if not isinstance(hello, link.Hello):
            raise ChannelError("the first frame must say hello, with the protocol that is spoken")
        protocol = link.agreed(hello, __version__)
        if hello.node and NODE_NAME.fullmatch(hello.node) is None:
            raise ChannelError("the node's name is none")
        welcome = link.Welcome(
            protocol=protocol,
            version=__version__,
            hub=self._store.index.identity,
            received_at_seconds=received_at,
            replied_at_seconds=self._store.now_seconds(),
            every_seconds=self._wanted(hello.node),
        )
        await socket.send(link.encode(welcome))
        return hello

    def _wanted(self, node: str) -> float:
        return wanted_seconds(self._fleet.going_on, node)

    async def _take(self, socket: ServerConnection, node: str) -> None:
        """Store what an agent sends, batch by batch."""
        has_sent = False
        async for content in socket:
            received_at = self._store.now_seconds()
            batch = link.decode(content)
            if not isinstance(batch, link.SampleBatch):
                raise ChannelError("an agent sends batches only")
            _check(batch)
            if has_sent and self._senders.get(node) is not socket:
                self._fleet.doubled(node)  # one that was cut off would not send again
            self._senders[node] = socket
            has_sent = True
            try:
                next_sequence = await self.put(NodeBatch(node, batch))
            except OSError as error:
                words = f"the hub's disk does not take samples: {error.strerror}"
                await socket.send(link.encode(link.HubRefusal(words=words, may_pass=True)))
                return
            self._fleet.heard(node)
            if batch.leaves:
                self._fleet.left(node)
                return
            stored = link.Stored(
                stream=batch.stream,
                next_sequence=next_sequence,
                received_at_seconds=received_at,
                replied_at_seconds=self._store.now_seconds(),
                every_seconds=self._wanted(node),
            )
            await socket.send(link.encode(stored))

    async def put(self, batch: NodeBatch) -> int:
        """Store a batch together with others; gives the next number of its stream.

        Raises:
            OSError: The disk does not take it.
        """
        waiting = _WaitingBatch(batch, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._news.set()
        return await waiting.stored

    async def _obey(self, socket: ServerConnection) -> None:
        """Carry out orders."""
        async for content in socket:
            order = link.decode(content)
            if not isinstance(order, link.HubCommand):
                raise ChannelError("a command is expected")
            answer: link.HubFrame
            try:
                answer = link.HubAnswer(result=await self._command(order.name, order.arguments))
            except UserError as error:
                answer = link.HubRefusal(words=str(error), may_pass=error.may_pass)
            except OSError as error:
                words = f"{order.name}: the hub's disk does not take it: {error.strerror}"
                answer = link.HubRefusal(words=words, may_pass=True)
            await socket.send(link.encode(answer))

    async def _commit(self) -> None:
        """Write what waits, together; then tell those who wait."""
        while True:
            await self._news.wait()
            await asyncio.sleep(COMMIT_SECONDS)
            self._news.clear()
            waiting, self._waiting = self._waiting, []
            batches = [each.batch for each in waiting]
            try:
                found = await asyncio.to_thread(self._store.commit, batches)
            except OSError as error:
                self._complain(error)
                for each in waiting:
                    if not each.stored.cancelled():
                        each.stored.set_exception(OSError(error.errno, error.strerror))
                continue
            except BaseException:  # nobody waits for what will not come: the hub ends
                for each in waiting:
                    each.stored.cancel()
                raise
            if self._is_full:
                self._is_full = False
                logger.warning("samples are stored again")
            for each, next_sequence in zip(waiting, found, strict=True):
                if not each.stored.cancelled():
                    each.stored.set_result(next_sequence)

    def _complain(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "%s: %s; nothing is acknowledged until there is room, agents keep their samples",
                self._store.folder,
                error.strerror,
            )
