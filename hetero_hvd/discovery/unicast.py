"""Tells one address of a node, where multicast ends at a router: the same adverts, one a packet."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from typing import NamedTuple

from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

LOOK_UP_SECONDS = 5.0
"""For a name server to answer; meanwhile the node is announced elsewhere."""

MAX_ADDRESSES = 4
"""Of one name that are told."""

_TARGET = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)
MAX_PORT = 65535


class AnnounceTarget(NamedTuple):
    """Whom to tell.

    Attributes:
        host: A name, or an address.
        port: UDP, 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def read(cls, text: str, flag: str) -> AnnounceTarget:
        """From `HOST:PORT` or `[IPv6]:PORT`.

        Raises:
            UserError: It is neither.
        """
        found = _TARGET.fullmatch(text)
        if found is None or not 1 <= int(found["port"]) <= MAX_PORT:
            raise UserError(
                f"{flag}: found {text!r}, must be HOST:PORT or [IPv6 address]:PORT, as "
                "`hetero-hvd run --listen PORT` was given it on that machine"
            )
        return cls(found["v6"] or found["host"], int(found["port"]))

    def __str__(self) -> str:
        """As people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnicastSender:
    """Sends packets to one target; says once that it cannot, and once that it can again.

    Args:
        target: Whom to tell; its name is looked up each time, as addresses change.
    """

    def __init__(self, target: AnnounceTarget) -> None:
        self._target = target
        self._trouble: str | None = "not tried"

    async def send(self, packet: bytes) -> None:
        """Send a packet, once to each address of the target; never raises."""
        trouble = None
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                found = await asyncio.get_running_loop().getaddrinfo(
                    self._target.host, self._target.port, type=socket.SOCK_DGRAM
                )
        except TimeoutError:
            trouble = "its name is not answered in time"
        except (OSError, UnicodeError) as error:
            trouble = getattr(error, "strerror", None) or str(error)
        else:
            told = [_sent(family, address, packet) for family, *_, address in found[:MAX_ADDRESSES]]
            trouble = None if None in told else told[0]
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble is None:
                logger.info("announces itself to %s", self._target)
            else:
                logger.warning("cannot announce to %s: %s", self._target, trouble)


def _sent(family: int, address: tuple[object, ...], packet: bytes) -> str | None:
    """Why it could not be sent; None: it was, which says nothing of its coming there."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.sendto(packet, address)
    except OSError as error:  # also a kernel without IPv6, or no descriptor
        return error.strerror or str(error)
    return None
