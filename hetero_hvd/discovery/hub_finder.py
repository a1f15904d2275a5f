"""Finds the hub of a cluster by what it announces, signed with the cluster key."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from hetero_hvd.discovery.advert import LIFETIME_SECONDS, OF_HUB, Advert, Verifier
from hetero_hvd.discovery.listener import AdvertListener
from hetero_hvd.discovery.unicast import AnnounceTarget

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
LOOK_SECONDS = 0.2


class _SeenHub(NamedTuple):
    """A hub, and when it was heard last, monotonic."""

    advert: Advert
    at_seconds: float


class HubFinder:
    """Hears hubs; tells the addresses of the one that is used in turn. Used in one loop only.

    Args:
        key: The cluster key.
        wall_clock: Seconds since 1970, for how old an advert is.
        say: Told once of each hub beside the one that is used.
    """

    def __init__(
        self,
        key: bytes,
        wall_clock: Callable[[], float],
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self._ear = AdvertListener(kind=OF_HUB)
        self._key = key
        self._verifier = Verifier(key, OF_HUB)
        self._wall_clock = wall_clock
        self._say = say
        self._hubs: dict[str, _SeenHub] = {}
        self._told: set[str] = set()
        self._num_asked = 0
        self._is_open = False
        self._asked_at_seconds = -ASK_SECONDS

    async def close(self) -> None:
        """Listen no more until the next search, and forget who was there: it may be old by then."""
        self._hubs.clear()
        self._verifier = Verifier(self._key, OF_HUB)
        if self._is_open:
            self._is_open = False
            await self._ear.close()

    async def find(self, preferred: str, *, timeout_seconds: float = ASK_SECONDS) -> FoundHub:
        """Where a hub is; waits for one for a while.

        Of several the preferred one counts, even if others were heard first: what a node has told
        it is there.

        Args:
            preferred: Identity of the hub that was used before; empty: none was.
            timeout_seconds: How long to wait.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            await self._listen()
            is_there = preferred in self._hubs if preferred else bool(self._hubs)
            if is_there or time.monotonic() >= deadline:
                return self._chosen(preferred)
            await asyncio.sleep(LOOK_SECONDS)

    def heard(self, sender: str, packet: bytes) -> None:
        """A packet came, in whatever way."""
        self._ear.heard(sender, packet)

    async def _listen(self) -> None:
        now_seconds = time.monotonic()
        if not self._is_open:
            try:
                await self._ear.open()
                self._is_open = True
            except OSError as error:
                logger.debug("no network to listen on: %s", error)
        elif now_seconds - self._asked_at_seconds >= ASK_SECONDS:
            self._asked_at_seconds = now_seconds
            self._ear.ask()
        for _, text in self._ear.take():
            advert = self._verifier.check(text, now_seconds=self._wall_clock())
            if not isinstance(advert, Advert):
                continue
            if advert.leaves:
                self._hubs.pop(advert.machine, None)
            else:
                self._hubs[advert.machine] = _SeenHub(advert, now_seconds)
        self._hubs = {
            identity: seen
            for identity, seen in self._hubs.items()
            if now_seconds - seen.at_seconds <= LIFETIME_SECONDS
        }

    def _chosen(self, preferred: str) -> FoundHub:
        if not self._hubs:
            return FoundHub("", None)
        identity = preferred if preferred in self._hubs else next(iter(self._hubs))
        advert = self._hubs[identity].advert
        for other in self._hubs.keys() - {identity} - self._told:
            self._told.add(other)
            where = ", ".join(self._hubs[other].advert.addresses)
            self._say(
                f"two hubs have this cluster's key: {identity} is used, {other} at {where} is not; "
                "end one of them, or name one with --hub HOST:PORT"
            )
        address = advert.addresses[self._num_asked % len(advert.addresses)]
        self._num_asked += 1
        return FoundHub(identity, AnnounceTarget(address, advert.port))


class FoundHub(NamedTuple):
    """What was found.

    Attributes:
        identity: Of the hub's store; empty: none was found.
        target: Where it listens; None: none was found.
    """

    identity: str
    target: AnnounceTarget | None
