"""Takes the adverts of nodes in, for a driver or a hub: heard, checked, counted, complained of."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hetero_hvd.discovery.advert import (
    LIFETIME_SECONDS,
    MAX_SKEW_SECONDS,
    REPLAYED,
    SAID_AGAIN,
    Advert,
    Verifier,
)
from hetero_hvd.discovery.listener import AdvertListener, ListenPortError
from hetero_hvd.errors import job_error

logger = logging.getLogger(__name__)

COMPLAINT_SECONDS = 10.0
MAX_SAID = 20
"""Reasons that people are told, each once."""

ASK_SECONDS = 5.0

IN_WORDS = {
    "stale": f"by the clock here it was signed more than {LIFETIME_SECONDS:g} s ago, or "
    f"{MAX_SKEW_SECONDS:g} s ahead: set the clocks, if nobody repeats an old one"
}
"""Reasons for which an advert is not used that do not speak for themselves."""

PORT_HINTS = {
    errno.EADDRINUSE: "; does another {user} here listen there? Give this one another",
    errno.EACCES: "; ports below 1024 are the system's, give another",
    errno.EADDRNOTAVAIL: "; it is no address of this machine",
}
"""What to do where the port cannot be had, by the kernel's number of the reason."""


class HeardAdvert(NamedTuple):
    """One that is believed.

    Attributes:
        sender: Address that it came from.
        text: The raw TXT record.
        advert: What that says.
    """

    sender: str
    text: bytes
    advert: Advert


class AdvertReceiver:
    """Hears what nodes announce. Used in the loop's thread only.

    Args:
        key: The cluster key.
        port: UDP port for those who announce themselves to an address of this machine; 0: none.
        say: Tells people, once for each reason, of what is not used.
        address: Of this machine, to which they do; None: any.
    """

    def __init__(
        self,
        key: bytes,
        port: int,
        say: Callable[[str], None],
        *,
        address: str | None = None,
    ) -> None:
        self._listener = AdvertListener(port, address=address)
        self._verifier = Verifier(key)
        self._say = say
        self._said = set[str]()
        self._complaints = set[str]()
        self._complained_at_seconds = self._asked_at_seconds = -1e9

    @property
    def ignored(self) -> dict[str, int]:
        """How many adverts were not believed, by reason."""
        return dict(self._verifier.ignored) | {"dropped": self._listener.dropped}

    async def open(self, *, port_setting: str, setting: str, user: str) -> None:
        """Listen.

        Args:
            port_setting: Where people have said the port, for messages.
            setting: Where they have said that adverts are to be heard.
            user: Who listens, for messages.

        Raises:
            JobError: There is no network to listen on, or the port cannot be had.
        """
        try:
            await self._listener.open()
        except ListenPortError as error:
            hint = PORT_HINTS.get(error.errno or 0, "").format(user=user)
            raise job_error(f"{port_setting}: {error.strerror}{hint}", error) from error
        except OSError as error:
            raise job_error(f"{setting}: cannot listen for nodes: {error}", error) from error

    async def close(self) -> None:
        """Listen no more."""
        await self._listener.close()

    def ask(self) -> None:
        """Ask all agents to announce themselves; `take` does so every 5 s."""
        self._asked_at_seconds = time.monotonic()
        self._listener.ask()

    def take(self, handed_on: Iterable[tuple[str, bytes]] = ()) -> Iterator[HeardAdvert]:
        """Check what came since the last tick, one after the other; what is too much was dropped.

        Args:
            handed_on: What a hub has told: which one, and the raw TXT record, of each.
        """
        now_seconds = time.monotonic()
        if now_seconds - self._asked_at_seconds >= ASK_SECONDS:
            self.ask()
        heard = [(sender, sender, text) for sender, text in self._listener.take()]
        told = [(None, whom, text) for whom, text in handed_on]
        for sender, whom, text in (*heard, *told):
            verdict = self._verifier.check(text, now_seconds=time.time(), sender=sender)
            if isinstance(verdict, Advert):
                yield HeardAdvert(whom, text, verdict)
            elif verdict not in {REPLAYED, SAID_AGAIN}:
                self.complain(whom, verdict)

    def complain(self, sender: str, why: str) -> None:
        """Tell that an advert is not used, people once for each reason, the log now and then."""
        if why not in self._complaints and len(self._complaints) < MAX_SAID:
            self._complaints.add(why)
            words = IN_WORDS.get(why, why)
            self.say_once(
                f"an advert from {sender} is not used: {words}; more of these only in the log"
            )
        now_seconds = time.monotonic()
        if now_seconds - self._complained_at_seconds >= COMPLAINT_SECONDS:
            self._complained_at_seconds = now_seconds
            logger.warning(
                "an advert from %s was ignored: %s; so far: %s", sender, why, self.ignored
            )

    def say_once(self, words: str) -> None:
        """Tell people something, unless they know it or were told much already."""
        if words not in self._said and len(self._said) < MAX_SAID:
            self._said.add(words)
            self._say(words)
