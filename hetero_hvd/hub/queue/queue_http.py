"""The queue over HTTP: the same verbs, for who shows the token of a user."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from hetero_hvd.core.queue.jobs import JobPriority
from hetero_hvd.discovery.submission.queue_link import (
    LogPart,
    QueueListing,
    QueueOrder,
    SubmittedJob,
    Text,
)
from hetero_hvd.errors import UserError
from hetero_hvd.hub.queue.queue_orders import EVENTS, QueueOrders
from hetero_hvd.run.web.operations import TEXT, Answer, ApiOperation, Asked
from hetero_hvd.run.web.scraping.exposition import Exposition
from hetero_hvd.security.local_sockets import PeerUser

JOBS = "/v1/queue/jobs"
MAX_NUMBER = 2**53


class PostedJob(SubmittedJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job with its packed working tree, a tar.gz in base64."""

    packed: bytes = b""


class MovedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a job goes; what is not said stays."""

    pool: Text = ""
    priority: JobPriority | None = None


class TakenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was taken in, the first one of an array, and what it does or waits for."""

    job: int
    why: str


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does, or what it waits for."""

    why: str


def digest_of(token: bytes) -> bytes:
    """By which a token is found, so that how long that takes tells nothing of it."""
    return hashlib.sha256(token).digest()


class QueueHttp:
    """The operations.

    Args:
        orders: Carries them out.
        users: Digest of a token to whose it is.
        metrics: The page for a scraper, by its Accept header.
    """

    def __init__(
        self,
        orders: QueueOrders,
        users: Mapping[bytes, PeerUser],
        metrics: Callable[[str], Exposition],
    ) -> None:
        self._orders = orders
        self._users = users
        self._metrics = metrics

    def knows(self, token: bytes) -> bool:
        """Whether it is a user's."""
        return digest_of(token) in self._users

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """All of them, for the hub's table."""
        about = f"{JOBS}/{{job}}"
        return (
            ApiOperation("GET", "/metrics", "read", "For Prometheus.", self._scraped,
                      media=TEXT),
            ApiOperation("GET", "/v1/queue", "queue", "Jobs and devices of the queue.", self._list,
                      (), None, QueueListing),
            ApiOperation("POST", JOBS, "queue", "Submit a job.", self._submit,
                      (), PostedJob, TakenJob),
            ApiOperation("GET", f"{about}/why", "queue", "What a job does or waits for.", self._why,
                      ("job",), None, JobAnswer),
            ApiOperation("GET", f"{about}/logs", "queue", "What a job has printed.", self._logs,
                      ("job", "begin"), None, LogPart),
            *(ApiOperation("POST", f"{about}/{name}", "queue", f"{name.capitalize()} a job.",
                      self._changed, ("job",), None, JobAnswer)
              for name in EVENTS if name != "move"),
            ApiOperation("POST", f"{about}/move", "queue", "Give a job another pool or priority.",
                      self._move, ("job",), MovedJob, JobAnswer),
        )  # fmt: skip

    def _act(self, asked: Asked, order: QueueOrder, tree: bytes = b"") -> Any:  # noqa: ANN401 - of JSON's kinds
        return self._orders.act(self._users[digest_of(asked.shown)], order, tree)

    async def _scraped(self, asked: Asked) -> Response:
        found = self._metrics(asked.accept)
        return Response(found.page, headers={"content-type": found.media})

    async def _list(self, asked: Asked) -> Answer:
        return Answer(self._act(asked, QueueOrder(name="list")))

    async def _submit(self, asked: Asked) -> Answer:
        posted: PostedJob = asked.body
        facts = {n: getattr(posted, n) for n in SubmittedJob.__struct_fields__}
        order = QueueOrder(name="submit", submitted=SubmittedJob(**facts))
        return Answer(self._act(asked, order, posted.packed))

    async def _why(self, asked: Asked) -> Answer:
        return Answer({"why": self._act(asked, _about(asked, "why"))})

    async def _logs(self, asked: Asked) -> Answer:
        return Answer(self._act(asked, _about(asked, "logs", int(asked.query.get("begin", 0)))))

    async def _move(self, asked: Asked) -> Answer:
        moved: MovedJob = asked.body
        order = msgspec.structs.replace(
            _about(asked, "move"), pool=moved.pool, priority=moved.priority
        )
        return Answer({"why": self._act(asked, order)})

    async def _changed(self, asked: Asked) -> Answer:
        return Answer({"why": self._act(asked, _about(asked, asked.name))})


def _about(asked: Asked, name: str, begin: int = 0) -> QueueOrder:
    """An order about the job of a path.

    Raises:
        UserError: It is no number.
    """
    text = asked.path["job"]
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_NUMBER):
        raise UserError(f"job {text[:20]!r}: must be a number")
    return QueueOrder(name=name, job=int(text), begin=begin)
