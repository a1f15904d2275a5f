"""The door to websockets: what all our links have in common, and its names for those who use it.

All have TLS of ours, by which both ends are sure of each other. Nothing is compressed, no proxy is
asked, and what has to be closed is given a second.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.sync.client import ClientConnection as ThreadConnection
from websockets.sync.client import connect as connect_in_thread
from websockets.typing import Subprotocol

from hetero_hvd.security.cluster_tls import ClientTls
from hetero_hvd.security.connection_limiter import Warnings
from hetero_hvd.security.tls_stream import TlsStream

__all__ = [
    "CONNECT_SECONDS",
    "ClientConnection",
    "ConnectionClosed",
    "Headers",
    "InvalidStatus",
    "Request",
    "Response",
    "Route",
    "Server",
    "ServerConnection",
    "State",
    "Subprotocol",
    "ThreadConnection",
    "WebSocketException",
    "connected",
    "connected_over",
    "served",
]

CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 1.0
"""For the other end to answer our good-bye; one that is out of reach never does."""

Route = Callable[[ServerConnection, Request], Response | Awaitable[Response | None] | None]
"""Answers what is no link, by a response, or lets a link begin."""


def connected(
    url: str,
    tls: ClientTls,
    *,
    max_frame_bytes: int | None,
    ping_seconds: float,
    subprotocol: Subprotocol | None = None,
) -> connect:
    """A link to a server, for `async with`.

    Args:
        url: Where it is.
        tls: How it is known.
        max_frame_bytes: The largest frame that is taken; None: any.
        ping_seconds: Between two signs of life; after as long without an answer it is dead.
        subprotocol: What both ends have to name, if anything.
    """
    return connect(
        url,
        ssl=tls.context,
        server_hostname=tls.name,
        subprotocols=None if subprotocol is None else [subprotocol],
        max_size=max_frame_bytes,
        compression=None,
        proxy=None,
        open_timeout=CONNECT_SECONDS,
        ping_interval=ping_seconds,
        ping_timeout=ping_seconds,
        close_timeout=CLOSE_SECONDS,
    )


def connected_over(
    stream: TlsStream, url: str, *, max_frame_bytes: int, open_seconds: float, close_seconds: float
) -> ThreadConnection:
    """A link over a connection that has TLS already, for threads; nobody pings."""
    return connect_in_thread(
        url,
        sock=stream,
        max_size=max_frame_bytes,
        compression=None,
        proxy=None,
        open_timeout=open_seconds,
        close_timeout=close_seconds,
        ping_interval=None,
    )


async def served(
    handler: Callable[[ServerConnection], Awaitable[None]],
    listening: socket.socket,
    route: Route,
    logger: logging.Logger,
    *,
    max_frame_bytes: int,
    open_seconds: float,
    ping_seconds: float | None,
    subprotocol: Subprotocol | None = None,
    **tls: Any,  # noqa: ANN401 - as asyncio has them
) -> Server:
    """Serve links at a port.

    Args:
        handler: Called with each link.
        listening: The port.
        route: See `Route`.
        logger: Gets what went wrong.
        max_frame_bytes: The largest frame that is taken.
        open_seconds: For the handshake.
        ping_seconds: As for `connected`; None: nobody pings.
        subprotocol: As for `connected`.
        tls: See `security.tls.server_options`.
    """
    return await serve(
        handler,
        sock=listening,
        process_request=route,
        subprotocols=None if subprotocol is None else [subprotocol],
        max_size=max_frame_bytes,
        compression=None,
        open_timeout=open_seconds,
        ping_interval=ping_seconds,
        ping_timeout=ping_seconds,
        close_timeout=CLOSE_SECONDS,
        logger=Warnings(logger, {}),
        **tls,
    )
