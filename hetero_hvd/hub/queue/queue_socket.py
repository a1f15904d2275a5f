"""The queue's socket on the hub's machine: the kernel says who is at the other end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.discovery.submission.queue_link import MAX_LINE_BYTES, QueueAnswer, QueueOrder
from hetero_hvd.errors import UserError, job_error
from hetero_hvd.hub.queue.queue_orders import QueueOrders
from hetero_hvd.security.local_sockets import REMOVES_NOTHING, bound, peer_of

logger = logging.getLogger(__name__)

ORDER_SECONDS = 60.0
"""For an order to come as a whole, its working tree included."""

MAX_CONNECTIONS = 16
"""At a time, each with a working tree at most; others wait."""


class QueueSocket:
    """The hub's end. Used in the loop's thread only.

    Args:
        path: Of the socket.
        orders: Carries them out.
    """

    def __init__(self, path: Path, orders: QueueOrders) -> None:
        self._path = path
        self._orders = orders
        self._server: asyncio.AbstractServer | None = None
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def listen(self) -> None:
        """Accept orders: of all users where this is root, who can run their jobs, else of our own.

        Raises:
            JobError: The socket cannot be made.
        """
        try:
            end = bound(self._path, 0o600 if os.geteuid() else 0o666)
        except OSError as error:
            words = f"{self._path} cannot be made: {error.strerror}"
            raise job_error(words, error) from error
        self._server = await asyncio.start_unix_server(
            self._serve, sock=end, limit=MAX_LINE_BYTES, **REMOVES_NOTHING
        )
        logger.info("the queue takes jobs at %s", self._path)

    async def close(self) -> None:
        """Accept no more."""
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._places:
            try:
                async with asyncio.timeout(ORDER_SECONDS):
                    answer = await self._answer(reader, writer)
            except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                answer = QueueAnswer(error="the order did not come as a whole", may_pass=True)
            with suppress(ConnectionError):
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> QueueAnswer:
        end: socket.socket = writer.get_extra_info("socket")
        try:
            order = msgspec.json.decode(await reader.readline(), type=QueueOrder)
            tree = b""
            if order.submitted is not None:
                tree = await reader.readexactly(order.submitted.tree_bytes)
            return QueueAnswer(done=self._orders.act(peer_of(end), order, tree))
        except UserError as error:
            return QueueAnswer(error=str(error), may_pass=error.may_pass)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return QueueAnswer(error=f"the order is not understood: {error}")
        except OSError as error:
            words = f"the hub's disk does not take it: {error.strerror}"
            return QueueAnswer(error=words, may_pass=True)
