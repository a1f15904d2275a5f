"""Orders for a hub from a command: one connection, one answer."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from hetero_hvd.discovery import hub_link as link
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import ChannelError, JobError, TryAgainError
from hetero_hvd.probes.kernel.boot_clock import boot_seconds
from hetero_hvd.security.cluster_tls import for_hubs_client
from hetero_hvd.security.web_socket import CONNECT_SECONDS, WebSocketException, connected
from hetero_hvd.version import __version__

PING_SECONDS = 20.0
ANSWER_SECONDS = 600.0
"""A cut of a week takes its time."""


async def order(key: bytes, hub: AnnounceTarget, name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - of JSON's kinds
    """Have something done.

    Args:
        key: The cluster key.
        hub: Where it listens.
        name: Of the command.
        arguments: Its arguments.

    Raises:
        JobError: The hub does not do it, and says why.
        TryAgainError: There is no hub, or it does not answer.
    """
    tls = for_hubs_client(key)
    try:
        async with connected(
            f"wss://{hub}{link.PATH}", tls, max_frame_bytes=None, ping_seconds=PING_SECONDS
        ) as socket:
            hello = link.Hello(
                protocol=link.PROTOCOL,
                oldest_protocol=link.OLDEST_PROTOCOL,
                version=__version__,
                asked_at_seconds=boot_seconds(),
            )
            await socket.send(link.encode(hello))
            _answer(link.decode(await asyncio.wait_for(socket.recv(), CONNECT_SECONDS)))
            await socket.send(link.encode(link.HubCommand(name=name, arguments=arguments)))
            return _answer(link.decode(await asyncio.wait_for(socket.recv(), ANSWER_SECONDS)))
    except ssl.SSLCertVerificationError as error:
        raise JobError(f"hub {hub}: the other end does not hold this cluster's key") from error
    except (OSError, WebSocketException, ChannelError, TimeoutError) as error:
        raise TryAgainError(
            f"hub {hub}: no hub answers there ({str(error) or 'in time'})"
        ) from error


def _answer(frame: link.HubFrame) -> Any:  # noqa: ANN401
    match frame:
        case link.HubRefusal(words=words, may_pass=True):
            raise TryAgainError(words)
        case link.HubRefusal(words=words):
            raise JobError(words)
        case link.HubAnswer(result=result):
            return result
    return None
