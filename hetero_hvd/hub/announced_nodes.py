"""Nodes that announce themselves to the hub, for all drivers that discover nodes.

An advert is handed on as it came, signed by its agent: a driver believes it because of that, not
because the hub tells it. Nothing is kept on a disk: a hub that was started anew hears all agents
within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, takewhile
from typing import Any

import msgspec

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.discovery.advert import LIFETIME_SECONDS, MAX_REMEMBERED, Advert
from hetero_hvd.discovery.hub_link import MAX_TOLD_ADVERTS, ToldAdverts
from hetero_hvd.discovery.receiver import AdvertReceiver, HeardAdvert
from hetero_hvd.discovery.registry import CountingAgent, in_conflict

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Between two looks at what came, as at a driver: in each so much of one sender is read."""

SILENT_SECONDS = LIFETIME_SECONDS * 2 / 3
"""An agent that was not heard for so long is told of no more: what it has signed last is good for
some more seconds, which a driver needs whose clock is ahead."""

RENEW_SECONDS = LIFETIME_SECONDS / 5
"""An advert that says the same again is news after so long, well before the earlier one ends."""


_Agent = tuple[str, bytes]
"""Its machine and its instance."""


@dataclass(frozen=True, kw_only=True)
class _AnnouncedNode:
    """The newest advert of an agent.

    Attributes:
        number: Grows with each that is news.
        told_at_seconds: When it became news; monotonic.
        heard: The newest one.
        heard_at_seconds: When that came; monotonic.
    """

    number: int
    told_at_seconds: float
    heard: HeardAdvert
    heard_at_seconds: float


class AnnouncedNodes:
    """What is announced here. Used in the loop's thread only.

    Args:
        key: The cluster key.
        identity: Of the hub's store.
        address: Where to listen; None: everywhere.
        port: UDP port to listen on; 0: nothing is heard.
    """

    def __init__(self, key: bytes, identity: str, address: str | None, port: int) -> None:
        self._identity = identity
        self._port = port
        self._receiver = AdvertReceiver(key, port, logger.warning, address=address)
        self._numbers = count(1)
        self._conflicts = 0
        self._counting: dict[str, CountingAgent] = {}  # by machine
        # In the order of their numbers: of each machine the agent that counts, and good-byes.
        self._nodes: dict[_Agent, _AnnouncedNode] = {}
        self._work: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen, if that is wanted.

        Raises:
            JobError: The port cannot be had.
        """
        if not self._port:
            return
        await self._receiver.open(port_setting="--listen", setting="--listen", user="hub or job")
        logger.info("takes adverts of nodes at UDP port %d", self._port)
        self._work = asyncio.create_task(self._listen())

    def look(self) -> None:
        """Raise what has ended the listening, if that has ended."""
        if self._work is not None and self._work.done():
            self._work.result()

    async def close(self) -> None:
        """Listen no more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})  # `look` has told what ended it
        await self._receiver.close()

    @property
    def facts(self) -> dict[str, Any]:
        """What the status tells."""
        names = (each.heard.advert.name for each in self._nodes.values() if _is_there(each))
        ignored = self._receiver.ignored | {"conflict": self._conflicts}
        return {"announced": sorted(names), "ignored_adverts": ignored}

    def exporters(self) -> dict[str, str]:
        """Where Prometheus finds the metrics of those that are there: name to `http[s]://...`.

        One that announces an address of the loopback is found from its own machine only: it counts
        where that is this one.
        """
        there = (each.heard for each in self._nodes.values() if _is_there(each))
        return {
            heard.advert.name: url
            for heard in there
            if (url := heard.advert.exporter_url)
            if not is_loopback(heard.advert.addresses[0]) or is_loopback(heard.sender)
        }

    async def told(self, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - of JSON's kinds
        """What came after a number, as many as go into an answer."""
        after = int(arguments.get("after", 0))
        found = list(islice(self._after(after), MAX_TOLD_ADVERTS))
        told = ToldAdverts(
            is_listening=bool(self._port),
            hub=self._identity,
            next=found[-1].number if found else after,
            adverts=[each.heard.text for each in found],
        )
        return msgspec.to_builtins(told, builtin_types=(bytes,))

    def _after(self, number: int) -> Iterator[_AnnouncedNode]:
        newest = takewhile(lambda each: each.number > number, reversed(self._nodes.values()))
        return reversed(list(newest))

    async def _listen(self) -> None:
        while True:
            now_seconds = time.monotonic()
            for heard in self._receiver.take():
                self.heard(heard, now_seconds)
            self.forget(now_seconds)
            await asyncio.sleep(TICK_SECONDS)

    def heard(self, heard: HeardAdvert, now_seconds: float) -> None:
        """An advert that is believed came: the newest of its machine so far.

        Args:
            heard: What came.
            now_seconds: Monotonic.
        """
        advert = heard.advert
        counting = self._counting.get(advert.machine)
        after = CountingAgent(advert) if counting is None else counting.after(advert)
        if after is not None:
            self._counting[advert.machine] = after
        elif not advert.leaves:
            self._conflicts += 1
            self._receiver.complain(heard.sender, in_conflict(advert))
            return
        before = self._keep((advert.machine, advert.instance), heard, now_seconds)
        is_other = counting is not None and counting.advert.instance != advert.instance
        if counting is not None and is_other and after is not None and not counting.advert.leaves:
            self._nodes.pop((advert.machine, counting.advert.instance), None)
        if advert.leaves:
            if before is not None and _is_there(before):
                logger.info("%s has said good-bye", advert.name)
        elif before is None or not _is_there(before):
            logger.info("%s announces itself, from %s", advert.name, heard.sender)
        if len(self._nodes) > MAX_REMEMBERED:  # only holders of the key can bring so many
            self._drop(next(iter(self._nodes)))

    def _keep(self, agent: _Agent, heard: HeardAdvert, now_seconds: float) -> _AnnouncedNode | None:
        """Remember the newest advert of an agent; gives the one before it."""
        before = self._nodes.get(agent)
        is_news = before is None or (
            _said(heard.advert) != _said(before.heard.advert)
            or now_seconds - before.told_at_seconds >= RENEW_SECONDS
        )
        if before is not None and not is_news:
            number, told_at_seconds = before.number, before.told_at_seconds
        else:
            number, told_at_seconds = next(self._numbers), now_seconds
            self._nodes.pop(agent, None)  # it goes to the end
        self._nodes[agent] = _AnnouncedNode(
            number=number,
            told_at_seconds=told_at_seconds,
            heard=heard,
            heard_at_seconds=now_seconds,
        )
        return before

    def _drop(self, agent: _Agent) -> _AnnouncedNode:
        """Know nothing more of an agent."""
        machine, instance = agent
        counting = self._counting.get(machine)
        if counting is not None and counting.advert.instance == instance:
            del self._counting[machine]
        return self._nodes.pop(agent)

    def forget(self, now_seconds: float) -> None:
        """Tell no more of those that are silent.

        Args:
            now_seconds: Monotonic.
        """
        silent = [
            agent
            for agent, each in self._nodes.items()
            if now_seconds - each.heard_at_seconds > SILENT_SECONDS
        ]
        for agent in silent:
            gone = self._drop(agent)
            if _is_there(gone):
                logger.info("%s announces itself no more", gone.heard.advert.name)


def _is_there(announced: _AnnouncedNode) -> bool:
    return not announced.heard.advert.leaves


def _said(advert: Advert) -> Advert:
    """What an advert says but for when."""
    return msgspec.structs.replace(advert, issued_at_seconds=0.0, nonce=bytes(16))
