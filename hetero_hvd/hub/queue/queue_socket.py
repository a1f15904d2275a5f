"""The queue's socket on the hub's machine: the kernel says who is at the other end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from hetero_hvd.discovery.submission.queue_link import MAX_LINE_BYTES, QueueAnswer, QueueOrder
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.hub.queue.queue_orders import QueueOrders
from hetero_hvd.security.local_sockets import LocalServer, PeerUser, is_served, peer_of

logger = logging.getLogger(__name__)

ORDER_SECONDS = 60.0
"""For an order to come as a whole, its working tree included."""

PLACES = 4
"""Of a user at a time, each with a working tree at most; the user's others wait, unread."""

MAX_CONNECTIONS = 1024
"""Of a user, those that wait included."""

BACKLOG = 1024


CUT_OFF = QueueAnswer(error="the order did not come as a whole", may_pass=True)


class QueueSocket:
    """The hub's end. Used in the loop's thread only.

    Args:
        path: Of the socket.
        orders: Carries them out.
    """

    def __init__(self, path: Path, orders: QueueOrders) -> None:
        self._path = path
        self._orders = orders
        self._server = LocalServer(
            path,
            self._serve,
            mode=0o600 if os.geteuid() else 0o666,
            max_line_bytes=MAX_LINE_BYTES,
            backlog=BACKLOG,
        )
        self._places: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(PLACES)
        )
        self._connections: Counter[int] = Counter()

    async def listen(self) -> None:
        """Accept orders: of all users where this is root, who can run their jobs, else of our own.

        Raises:
            JobError: The socket cannot be made, or another hub has it.
        """
        if is_served(self._path):
            raise JobError(f"{self._path}: another hub takes jobs there: give --queue-socket")
        await self._server.listen()
        logger.info("the queue takes jobs at %s", self._path)

    async def close(self) -> None:
        """Accept no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = peer_of(writer.get_extra_info("socket"))
        transport = cast("asyncio.Transport", writer.transport)  # of a socket it reads, too
        transport.pause_reading()
        self._connections[user.uid] += 1
        try:
            if self._connections[user.uid] > MAX_CONNECTIONS:
                words = f"{user.name} has {MAX_CONNECTIONS} orders under way already"
                await self._end(writer, QueueAnswer(error=words, may_pass=True))
                return
            async with self._places[user.uid], asyncio.timeout(ORDER_SECONDS):
                transport.resume_reading()
                try:
                    answer = await self._answer(user, reader)
                except (ConnectionError, asyncio.IncompleteReadError):
                    answer = CUT_OFF
                await self._end(writer, answer)
        except TimeoutError:
            writer.write(msgspec.json.encode(CUT_OFF) + b"\n")
        finally:
            writer.close()
            self._connections[user.uid] -= 1
            if not self._connections[user.uid]:
                del self._connections[user.uid], self._places[user.uid]

    async def _end(self, writer: asyncio.StreamWriter, answer: QueueAnswer) -> None:
        with suppress(ConnectionError):
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()

    async def _answer(self, user: PeerUser, reader: asyncio.StreamReader) -> QueueAnswer:
        try:
            order = msgspec.json.decode(await reader.readline(), type=QueueOrder)
            tree = b""
            if order.submitted is not None:
                tree = await reader.readexactly(order.submitted.tree_bytes)
            return QueueAnswer(done=self._orders.act(user, order, tree))
        except UserError as error:
            return QueueAnswer(error=str(error), may_pass=error.may_pass)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return QueueAnswer(error=f"the order is not understood: {error}")
        except OSError as error:
            words = f"the hub's disk does not take it: {error.strerror}"
            return QueueAnswer(error=words, may_pass=True)
