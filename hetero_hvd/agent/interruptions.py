"""Asks the cloud whether it is about to take this machine away, as it does with spot machines.

Each provider has a metadata service that a machine reaches at an address of the link. It tells of
an interruption, over plain HTTP without a name:
- Amazon: `meta-data/spot/instance-action` is 404, or says what comes and when, to who shows a
  session token (IMDSv2); 120 s before.
- Google: `instance/preempted` is FALSE or TRUE; 30 s before.
- Azure: `scheduledevents` lists what comes to machines of the same set, by their names, and not
  before which time: in 30 s for a preemption, in minutes or days for all others. It is only read:
  who approves an event there makes it begin at once, for everything on the machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, ClassVar, NamedTuple, Protocol

from hetero_hvd.discovery.daemon_thread import in_daemon_thread
from hetero_hvd.security.http_requests import NoRedirects

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two questions: a notice of Google's or Azure's leaves 30 s."""

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 2**16
COMPLAINT_SECONDS = 600.0
TOKEN_SECONDS = 21600
"""For how long a session token of Amazon's is asked for; a new one comes after half of it."""

LINK_ADDRESS = "http://169.254.169.254"
ERRORS = (OSError, ValueError, TypeError, HTTPException, RecursionError)
"""What a service that is none, or is broken, can lead to."""

LEAD_SECONDS = 120.0
"""So long before its machine goes the agent leaves, where that is told earlier: as much as Amazon
gives, so that the step under way ends and the node's clock may be a minute wrong."""

ENDING = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})
"""Azure's events after which no process is left; a `Freeze` of seconds is none."""


class Notice(NamedTuple):
    """Something that is about to end this machine.

    Attributes:
        words: What and when, for people.
        not_before_seconds: It does not begin earlier, seconds since 1970; 0: at any moment.
    """

    words: str
    not_before_seconds: float = 0.0


class MetadataService:
    """One provider's service.

    Args:
        url: Where it is; None: where the provider has it.
    """

    default_url: ClassVar[str]

    def __init__(self, url: str | None = None) -> None:
        self._url = (url or self.default_url).rstrip("/")
        # No proxy of the environment: it would be asked about itself.
        handlers = urllib.request.ProxyHandler({}), NoRedirects()
        self._opener = urllib.request.build_opener(*handlers)

    def notice(self) -> Notice | None:
        """What is about to come, the first of it; None: nothing is known to come. Blocks.

        Raises:
            OSError, HTTPException: No answer, or an error.
            ValueError, TypeError, RecursionError: An answer that is not understood.
        """
        raise NotImplementedError

    def _ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
        """The answer; None: there is nothing of this name."""
        request = urllib.request.Request(  # noqa: S310 - http, to an address of the link
            self._url + path, headers=dict(headers), method=method
        )
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                found: bytes = answer.read(MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise
        return found.decode()


class Amazon(MetadataService):
    """EC2: spot interruptions, by IMDSv2."""

    default_url = LINK_ADDRESS

    def __init__(self, url: str | None = None) -> None:
        super().__init__(url)
        self._token = ""
        self._token_at_seconds = -1e9

    def notice(self) -> Notice | None:
        """See `MetadataService`."""
        if time.monotonic() - self._token_at_seconds > TOKEN_SECONDS / 2:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            self._token = self._ask("/latest/api/token", wish, "PUT") or ""
            if not self._token:  # what follows would be nobody's answer
                raise ValueError("found no session token")
            self._token_at_seconds = time.monotonic()
        shown = {"X-aws-ec2-metadata-token": self._token}
        try:
            found = self._ask("/latest/meta-data/spot/instance-action", shown)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                self._token_at_seconds = -1e9
            raise
        if found is None:
            return None
        told = _mapping(json.loads(found))
        return Notice(f"{_word(told.get('action'))} at {_word(told.get('time'))}")


class Google(MetadataService):
    """Compute Engine: preemption of spot and preemptible machines."""

    default_url = "http://metadata.google.internal"

    def notice(self) -> Notice | None:
        """See `MetadataService`."""
        path, headers = "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
        found = (self._ask(path, headers) or "").strip()
        if found not in ("TRUE", "FALSE"):
            raise ValueError(f"{found[:40]!r} is neither TRUE nor FALSE")
        return Notice("preempted") if found == "TRUE" else None


class Azure(MetadataService):
    """Virtual machines: scheduled events of this machine."""

    default_url = LINK_ADDRESS

    def __init__(self, url: str | None = None) -> None:
        super().__init__(url)
        self._name: str | None = None

    def notice(self) -> Notice | None:
        """See `MetadataService`."""
        headers = {"Metadata": "true"}
        if self._name is None:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = (self._ask(path, headers) or "").strip() or None
        found = self._ask("/metadata/scheduledevents?api-version=2020-07-01", headers)
        told = _mapping(json.loads(found or "{}")).get("Events")
        if told is None:  # a service that has nothing to tell lists no events
            raise ValueError("found no list of events")
        notices = []
        for event in map(_mapping, told):
            is_ours = self._name is None or self._name in (event.get("Resources") or ())
            if is_ours and event.get("EventType") in ENDING:
                notices.append(_azure_notice(event))
        return min(notices, key=lambda notice: notice.not_before_seconds, default=None)


def _azure_notice(event: Mapping[str, Any]) -> Notice:
    """An event that has begun has no time any more; one whose time is not understood may begin."""
    words = f"{_word(event.get('EventType'))} at {_word(event.get('NotBefore'))}"
    if event.get("EventStatus") == "Started":
        return Notice(words)
    try:
        at_seconds = parsedate_to_datetime(str(event.get("NotBefore"))).timestamp()
    except (ValueError, OverflowError):
        return Notice(words)
    return Notice(words, at_seconds)


PROVIDERS: dict[str, type[MetadataService]] = {"aws": Amazon, "azure": Azure, "gcp": Google}


def _mapping(found: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever was answered
    if not isinstance(found, dict):
        raise ValueError(f"found {type(found).__name__} in an answer, must be an object")  # noqa: TRY004 - see `notice`
    return found


def _word(found: object) -> str:
    """A part of an answer, fit for one line of a log."""
    text = str(found)[:60]
    return text if text.isprintable() and text != "None" else "a time that is not told"


class NoticeSource(Protocol):
    """What is asked."""

    def notice(self) -> Notice | None:
        """See `MetadataService`."""


class Interruptions:
    """Knows whether this machine is about to go; never stops the agent, whatever is answered.

    Args:
        service: Is asked every 2 s, in a thread; while that hangs it is not asked again.

    Attributes:
        asked: Set when the first question was answered, or was not.
        expected: Set from 2 min before the machine goes, or as soon as that is known, while the
            notice stands. It may be withdrawn: a machine that hibernated goes on.
        withdrawn: Set whenever `expected` is not.
    """

    def __init__(self, service: NoticeSource) -> None:
        self._service = service
        self._complained_at_seconds = -1e9
        self._announced: Notice | None = None
        self.asked = asyncio.Event()
        self.expected = asyncio.Event()
        self.withdrawn = asyncio.Event()
        self.withdrawn.set()

    async def watch(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                self._see(await in_daemon_thread(self._service.notice), time.time())
            except ERRORS as error:  # what is known stays
                self._complain(error)
            self.asked.set()
            await asyncio.sleep(LOOK_SECONDS)

    def _see(self, notice: Notice | None, now_seconds: float) -> None:
        is_due = notice is not None and notice.not_before_seconds - now_seconds <= LEAD_SECONDS
        if notice is not None and is_due and not self.expected.is_set():
            logger.warning("the cloud takes this machine away (%s): leaving", notice.words)
            self.expected.set()
            self.withdrawn.clear()
        elif notice is not None and not is_due and notice != self._announced:
            logger.warning(
                "the cloud will take this machine away (%s): leaving %.0f s before",
                notice.words,
                LEAD_SECONDS,
            )
        if not is_due and self.expected.is_set():
            logger.warning("the cloud leaves this machine where it is: coming back")
            self.expected.clear()
            self.withdrawn.set()
        self._announced = notice

    def _complain(self, error: Exception) -> None:
        now_seconds = time.monotonic()
        if now_seconds - self._complained_at_seconds >= COMPLAINT_SECONDS:
            self._complained_at_seconds = now_seconds
            reason = getattr(error, "reason", None) or error
            logger.warning(
                "the cloud's metadata service does not tell of interruptions: %s", reason
            )
