"""Tells one address of a node, where multicast ends at a router: the same adverts, one a packet."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import socket
import time
from functools import partial
from typing import NamedTuple

from hetero_hvd.config.value_types import HOST, host_in_url, is_one_address
from hetero_hvd.discovery.daemon_thread import in_daemon_thread
from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""So long a packet waits for a name server; an answer that comes later is for the next packet."""

LOOK_UP_SECONDS = 5.0
"""After so long without an answer people are told."""

REFUSAL_SECONDS = 0.2
"""So long the other machine may take to say that the port is closed, where it does so at all."""

NOBODY = "nobody listens at that port; is it the one of --listen there?"

MAX_TARGETS = 16
"""Of one agent: for each a thread may wait for a name server."""

MAX_ADDRESSES = 4
"""Of one name that are told."""

_TARGET = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]{1,15})?)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)
MAX_PORT = 65535


def is_one_machine(host: str) -> bool:
    """Whether it is a name, or an address that is not of this machine, a group or all."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return HOST.admits(host)
    return is_one_address(address)


GIVEN_TO_HUB = "hetero-hvd hub --port PORT"
"""Who was told the port of a hub."""

GIVEN_TO_LISTENER = "hetero-hvd hub --listen PORT` or `hetero-hvd run --listen PORT"
"""Who was told the port for adverts."""


class AnnounceTarget(NamedTuple):
    """Whom to tell.

    Attributes:
        host: A name, or an address; one of the link (`fe80::1%eth0`) with its interface.
        port: UDP, 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def read(cls, text: str, flag: str, given_as: str = GIVEN_TO_LISTENER) -> AnnounceTarget:
        """From `HOST:PORT` or `[IPv6]:PORT`.

        Args:
            text: What was given.
            flag: Where, for the error.
            given_as: The command that was told the port on that machine, for the error.

        Raises:
            UserError: It is neither.
        """
        found = _TARGET.fullmatch(text)
        host = (found["v6"] or found["host"]) if found else ""
        if not (found and is_one_machine(host) and 1 <= int(found["port"]) <= MAX_PORT):
            raise UserError(
                f"{flag}: found {text!r}, must be HOST:PORT or [IPv6 address]:PORT, as "
                f"`{given_as}` was given it on that machine"
            )
        return cls(host, int(found["port"]))

    def __str__(self) -> str:
        """As people write it."""
        return f"{host_in_url(self.host)}:{self.port}"


Found = list[tuple[int, tuple[object, ...]]]
"""Families and addresses of a target."""


class UnicastSender:
    """Sends packets to one target; says once that it cannot, and once that it can again.

    Its name is looked up for each packet, as addresses change, but never twice at a time. While a
    name server does not answer, or knows nothing, the addresses found last are told: they were
    right until then, and a node is not lost because of a name.

    Args:
        target: Whom to tell.
    """

    def __init__(self, target: AnnounceTarget) -> None:
        self._target = target
        self._trouble: str | None = "not tried"
        self._found: Found = _addresses(target, is_name=False)
        self._is_name = not self._found
        self._look_up: asyncio.Future[Found] | None = None
        self._asked_at_seconds = 0.0

    async def send(self, packet: bytes) -> None:
        """Send a packet, once to each address of the target; takes at most 1 s, never raises."""
        trouble = await self._renew() if self._is_name else None
        told = await asyncio.gather(*(_sent(*found, packet) for found in self._found))
        if told and None not in told:
            trouble = told[0]
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(trouble, is_sent=None in told)

    def _say(self, trouble: str | None, *, is_sent: bool) -> None:
        if trouble is None:
            logger.info("announces itself to %s", self._target)
        elif is_sent:
            logger.warning("announces itself to %s where it was last: %s", self._target, trouble)
        else:
            logger.warning("cannot announce to %s: %s", self._target, trouble)

    async def _renew(self) -> str | None:
        """Look the name up, or see what became of that; gives what is wrong with it."""
        if self._look_up is None:
            self._asked_at_seconds = time.monotonic()
            self._look_up = in_daemon_thread(partial(_addresses, self._target, is_name=True))
            await asyncio.wait({self._look_up}, timeout=WAIT_SECONDS)
        if not self._look_up.done():
            is_late = time.monotonic() - self._asked_at_seconds >= LOOK_UP_SECONDS
            return "its name is not answered in time" if is_late else self._trouble
        look_up, self._look_up = self._look_up, None
        if (error := look_up.exception()) is None:
            self._found = look_up.result()
            return None
        return getattr(error, "strerror", None) or str(error)


def _addresses(target: AnnounceTarget, *, is_name: bool) -> Found:
    """Those of a target; of a name, which may take long, or else none unless it is an address.

    Raises:
        OSError, UnicodeError: It is a name that cannot be found.
    """
    flags = 0 if is_name else socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError):
        if is_name:
            raise
        return []
    return [(family, address) for family, *_, address in found[:MAX_ADDRESSES]]


async def _sent(family: int, address: tuple[object, ...], packet: bytes) -> str | None:
    """Why it could not be sent; None: it was, which says little of its coming there."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.connect(address)  # so that the other machine's refusal is heard
            end.send(packet)
            await asyncio.sleep(REFUSAL_SECONDS)
            is_refused = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
            return NOBODY if is_refused else None
    except OSError as error:  # also a kernel without IPv6, or no descriptor
        return error.strerror or str(error)
