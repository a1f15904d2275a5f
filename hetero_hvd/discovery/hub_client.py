"""Orders for a hub, from commands and drivers."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hetero_hvd.discovery import hub_link as link
from hetero_hvd.discovery.hub_finder import HubFinder
from hetero_hvd.discovery.unicast import GIVEN_TO_HUB, AnnounceTarget
from hetero_hvd.errors import ChannelError, JobError, TryAgainError, UserError
from hetero_hvd.probes.kernel.boot_clock import boot_seconds
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.security.cluster_tls import for_hubs_client
from hetero_hvd.security.web_socket import (
    CONNECT_SECONDS,
    ClientConnection,
    WebSocketException,
    connected,
)
from hetero_hvd.version import __version__

PING_SECONDS = 20.0
ANSWER_SECONDS = 600.0
"""A cut of a week takes its time."""

AUTO = "auto"


class HubConversation:
    """Orders of one connection, one after the other.

    Args:
        socket: After the greeting.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def order(
        self, name: str, arguments: dict[str, Any], *, answer_seconds: float = ANSWER_SECONDS
    ) -> Any:  # noqa: ANN401 - of JSON's kinds
        """Have something done.

        Args:
            name: Of the command.
            arguments: Its arguments.
            answer_seconds: For the answer.

        Raises:
            JobError: The hub does not do it, and says why.
            TryAgainError: It does not do it now, and says why.
            TimeoutError: There is no answer in time.
        """
        await self._socket.send(link.encode(link.HubCommand(name=name, arguments=arguments)))
        answer = await asyncio.wait_for(self._socket.recv(), answer_seconds)
        return _answer(link.decode(answer))


@asynccontextmanager
async def conversation(
    key: bytes, hub: AnnounceTarget, *, max_frame_bytes: int | None = None
) -> AsyncIterator[HubConversation]:
    """Talk with the hub; what fails within is told as here.

    Args:
        key: The cluster key.
        hub: Where it listens.
        max_frame_bytes: Of an answer; None: any.

    Raises:
        JobError: It has another key, or does not talk with us, and says why.
        TryAgainError: There is no hub, or it does not answer.
    """
    try:
        tls = await asyncio.to_thread(for_hubs_client, key)
        async with connected(
            f"wss://{hub}{link.PATH}",
            tls,
            max_frame_bytes=max_frame_bytes,
            ping_seconds=PING_SECONDS,
        ) as socket:
            hello = link.Hello(
                protocol=link.PROTOCOL,
                oldest_protocol=link.OLDEST_PROTOCOL,
                version=__version__,
                asked_at_seconds=boot_seconds(),
            )
            await socket.send(link.encode(hello))
            _answer(link.decode(await asyncio.wait_for(socket.recv(), CONNECT_SECONDS)))
            yield HubConversation(socket)
    except ssl.SSLCertVerificationError as error:
        raise JobError(f"hub {hub}: the other end does not hold this cluster's key") from error
    except (OSError, WebSocketException, ChannelError, TimeoutError) as error:
        raise TryAgainError(
            f"hub {hub}: no hub answers there ({str(error) or 'in time'})"
        ) from error


class HubOrders:
    """Orders something of the hub, wherever that is.

    Args:
        key_file: With the cluster key; None: there is none.
        hub: `HOST:PORT`, or `auto`: the one that announces itself.
        setting: Where people have said that, for messages.
        max_frame_bytes: Of an answer; None: any.

    Attributes:
        is_named: Whether people have said that there is a hub.
    """

    def __init__(
        self,
        key_file: str | Path | None,
        hub: str,
        *,
        setting: str = "hub",
        max_frame_bytes: int | None = link.MAX_FRAME_BYTES,
    ) -> None:
        self._key_file = key_file
        self._hub = hub
        self._setting = setting
        self._max_frame_bytes = max_frame_bytes
        self._target: AnnounceTarget | None = None
        self._finder: HubFinder | None = None
        self.is_named = key_file is not None and hub != AUTO

    @property
    def is_possible(self) -> bool:
        """Whether a hub can be known at all."""
        return self._key_file is not None

    async def __call__(self, action: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - of JSON's kinds
        """Have something done.

        Raises:
            UserError: It is not done; says why.
        """
        async with self.conversation() as talk:
            return await talk.order(action, arguments)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[HubConversation]:
        """Talk with it, wherever it is now.

        Raises:
            UserError: There is none, or it does not do what is wanted; says why.
        """
        if self._key_file is None:
            raise UserError("no hub is known without cluster_key_file")
        key = await asyncio.to_thread(read_key, Path(self._key_file))
        if self._target is None:
            self._target = await self._found(key)
        is_ours = False
        try:
            async with conversation(
                key, self._target, max_frame_bytes=self._max_frame_bytes
            ) as talk:
                is_ours = True
                yield talk
        except UserError as error:
            if error.may_pass or not is_ours:
                self._target = None  # it may be somewhere else
            raise

    async def _found(self, key: bytes) -> AnnounceTarget:
        if self._hub != AUTO:
            return AnnounceTarget.read(self._hub, self._setting, GIVEN_TO_HUB)
        if self._finder is None:  # and kept, as it has tried some addresses
            self._finder = HubFinder(key, time.time)
        try:
            found = (await self._finder.find("")).target
        finally:
            await self._finder.close()
        if found is None:
            raise TryAgainError(
                "no hub announces itself here with this key; start hetero-hvd hub, or name it: "
                f"{self._setting} HOST:PORT"
            )
        return found


def _answer(frame: link.HubFrame) -> Any:  # noqa: ANN401
    match frame:
        case link.HubRefusal(words=words, may_pass=True):
            raise TryAgainError(words)
        case link.HubRefusal(words=words):
            raise JobError(words)
        case link.HubAnswer(result=result):
            return result
    return None
