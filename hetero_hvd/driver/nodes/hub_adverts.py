"""Asks the cluster's hub for the adverts that came to it, which multicast does not bring here.

They are the agents' own words, signed: each is checked here as if it had come directly. A hub that
is away costs no node at once, as an advert counts for a while; when it is back it is asked for all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

import msgspec

from hetero_hvd.core.backoff import doubled, jittered
from hetero_hvd.discovery.hub_client import HubConversation, HubOrders
from hetero_hvd.discovery.hub_link import MAX_TOLD_ADVERTS, ToldAdverts
from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

ASK_SECONDS, MORE_SECONDS = 1.0, 0.25
"""Between two questions; less where the hub had more than it could tell at once."""

DEAF_SECONDS = 30.0
"""Between two questions to a hub that takes no adverts."""

ANSWER_SECONDS = 10.0
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 15.0
"""A hub that is back is asked before the adverts of its agents have ended here."""

NOTE_SECONDS, MAX_NOTES = 3600.0, 8
"""Of one cause people are told once in so long, and of so many causes."""

MAX_WAITING = 4096
"""Adverts that were not taken yet; one for each machine is far less."""


class HubAdverts:
    """Used in the loop's thread only.

    Args:
        hub: Reaches the hub.
        say: Tells people that a hub that they have named is not asked, and why; of a hub that comes
            and goes not each time.
    """

    def __init__(self, hub: HubOrders, say: Callable[[str], None]) -> None:
        self._hub = hub
        self._say = say
        self._waiting: list[tuple[str, bytes]] = []
        self._trouble = ""
        self._told_at_seconds: dict[str, float] = {}  # by cause
        self._num_failures = 0
        self._work: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Ask from now on."""
        self._work = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Ask no more."""
        if self._work is None:
            return
        self._work.cancel()
        await asyncio.wait({self._work})
        if not self._work.cancelled() and (error := self._work.exception()) is not None:
            logger.error("the hub was not asked for adverts any more", exc_info=error)

    def take(self) -> list[tuple[str, bytes]]:
        """What came since the last time: (whom from, raw TXT record)."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _follow(self) -> None:
        while True:
            try:
                async with self._hub.conversation() as talk:
                    await self._talk(talk)
            except UserError as error:
                self._tell(str(error))
            except msgspec.ValidationError as error:
                self._tell("the hub says what no hub says", f": {error}")
            self._num_failures += 1
            longest = doubled(FIRST_RETRY_SECONDS, self._num_failures, MAX_RETRY_SECONDS)
            await asyncio.sleep(jittered(FIRST_RETRY_SECONDS, longest, random.random()))  # noqa: S311 - no secret

    async def _talk(self, talk: HubConversation) -> None:
        """Ask for what is new since the last answer, of all there is at first."""
        after = 0
        while True:
            answer = await talk.order("adverts", {"after": after}, answer_seconds=ANSWER_SECONDS)
            told = msgspec.convert(answer, ToldAdverts)
            after = told.next
            self._trouble = ""
            self._num_failures = 0
            self._waiting += ((f"the hub ({told.hub})", text) for text in told.adverts)
            del self._waiting[:-MAX_WAITING]
            is_more = len(told.adverts) == MAX_TOLD_ADVERTS
            pause = MORE_SECONDS if is_more else ASK_SECONDS
            await asyncio.sleep(pause if told.is_listening else DEAF_SECONDS)

    def _tell(self, cause: str, more: str = "") -> None:
        if cause == self._trouble:
            return
        self._trouble = cause
        words = f"nodes that announce themselves to the hub are not found: {cause}{more}"
        now = time.monotonic()
        told = {c: at for c, at in self._told_at_seconds.items() if now - at < NOTE_SECONDS}
        if self._hub.is_named and cause not in told and len(told) < MAX_NOTES:
            told[cause] = now
            self._say(f"note: {words}")
        else:
            logger.info("%s", words)
        self._told_at_seconds = told
