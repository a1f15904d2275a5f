"""What the hub answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response

from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.http.bodies import (
    CutSession,
    FigureOverTime,
    IngestBatch,
    Ingested,
    PartOfList,
    PartOfRuns,
    RunWithMarks,
    StartSession,
)
from hetero_hvd.hub.http.ingest import ForeignIngest
from hetero_hvd.hub.http.operations import (
    DEFAULT_LIMIT,
    PARAMETERS,
)
from hetero_hvd.hub.http.series import StoredSeries
from hetero_hvd.hub.storage.store import SampleStore
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.application import HttpApplication
from hetero_hvd.run.web.event_streams import EventStreams
from hetero_hvd.run.web.operations import (
    EVENT_STREAM,
    Answer,
    ApiOperation,
    Asked,
    BodyLimits,
)
from hetero_hvd.run.web.orders import ScrapeTargets
from hetero_hvd.run.web.problems import RequestProblem, shown
from hetero_hvd.security.connection_limiter import ConnectionLimiter

MAX_BODY_BYTES = 2**20
BODY_SECONDS = 10.0
EVENT_SECONDS = 1.0
EVENTS = "/v1/events"
PAGE = Path(__file__).parent / "page" / "hub.html"


class HubApi:
    """The operations. Used in the loop's thread only.

    Args:
        access: Who may do what.
        store: Of the hub.
        commands: Carries out orders.
        ingest: Takes samples of others.
        door: Is told whose requests are answered.
        queue: Operations of its queue.
    """

    def __init__(
        self,
        access: Access,
        store: SampleStore,
        commands: HubCommands,
        ingest: ForeignIngest,
        door: ConnectionLimiter,
        *,
        queue: Sequence[ApiOperation] = (),
    ) -> None:
        self._store = store
        self._commands = commands
        self._ingest = ingest
        self._queue = queue
        self._streams = EventStreams(self._news, EVENT_SECONDS)
        self._application = HttpApplication(
            self._operations(),
            page=PAGE,
            access=access,
            door=door,
            parameters=PARAMETERS,
            limits=BodyLimits(MAX_BODY_BYTES, BODY_SECONDS),
            title="hetero_hvd hub",
        )

    def app(self) -> Starlette:
        """The ASGI application."""
        return self._application.app()

    def _operations(self) -> tuple[ApiOperation, ...]:
        return (
            ApiOperation("GET", "/v1/status", "read", "The hub in short.", self._status),
            ApiOperation("GET", "/v1/clients", "read", "Nodes and other sources.", self._clients,
                      ("after", "limit", "kind"), None, PartOfList),
            ApiOperation("GET", "/v1/latest", "read", "The newest sample of each.", self._latest,
                      ("after", "limit", "kind", "node"), None, PartOfList),
            ApiOperation("GET", "/v1/sessions", "read", "Sessions.", self._sessions,
                      ("after", "limit"), None, PartOfList),
            ApiOperation("POST", "/v1/sessions", "operate", "Start a session.", self._start,
                      (), StartSession),
            ApiOperation("POST", "/v1/sessions/{name}/stop", "operate", "Stop a session.",
                      self._stop, ("name",)),
            ApiOperation("POST", "/v1/cuts", "operate", "Write a recording.", self._cut,
                      (), CutSession),
            ApiOperation("GET", "/v1/runs", "read", "Runs, and recordings that are written.",
                      self._runs, ("after", "limit"), None, PartOfRuns),
            ApiOperation("GET", "/v1/runs/{id}", "read", "A run with its marks.", self._run,
                      ("id",), None, RunWithMarks),
            ApiOperation("GET", "/v1/sd", "read", "What Prometheus should scrape: runs, agents.",
                      self._targets, result=list[ScrapeTargets]),
            ApiOperation("GET", EVENTS, "read", "News of nodes and sessions, as they come.",
                      self._events, media=EVENT_STREAM),
            ApiOperation("GET", "/v1/series", "read", "A figure of a node over time.",
                      StoredSeries(self._store).act,
                      ("node", "figure", "device", "from", "to", "points"), None, FigureOverTime),
            ApiOperation("POST", "/v1/ingest", "ingest", "Store samples of another program.",
                      self._ingest.act, (), IngestBatch, Ingested),
            *self._queue,
        )  # fmt: skip

    async def _status(self, _asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        del status["nodes"], status["sessions"], status["streams"]
        return Answer(
            status | {"refused": self._application.refused, "ingest_refused": self._ingest.refused}
        )

    async def _clients(self, asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        kind = asked.query.get("kind")
        items = [item for item in status["nodes"] if kind in (None, item["kind"])]
        return _listed(items, "node", asked)

    async def _sessions(self, asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        return _listed(status["sessions"], "name", asked)

    async def _latest(self, asked: Asked) -> Answer:
        wanted, kind = asked.query.get("node"), asked.query.get("kind")
        agents = self._store.nodes()
        items = [
            {
                "node": frame.node,
                "at_unix_seconds": frame.recorded.at_microseconds / MICROSECONDS,
                "sequence": frame.recorded.sequence,
                "sample": msgspec.msgpack.decode(frame.recorded.sample),
            }
            for frame in dict(self._store.latest).values()
            if wanted in (None, frame.node)
            and (kind is None or (frame.node in agents) is (kind == "node"))
        ]
        return _listed(items, "node", asked)

    async def _start(self, asked: Asked) -> Answer:
        return Answer(await self._commands.act("start", msgspec.to_builtins(asked.body)))

    async def _stop(self, asked: Asked) -> Answer:
        return Answer(await self._commands.act("stop", {"name": asked.path["name"]}))

    async def _cut(self, asked: Asked) -> Answer:
        body: CutSession = asked.body
        arguments: dict[str, Any] = {"name": body.name, "nodes": body.nodes}
        times = {"from": body.from_unix_seconds, "to": body.to_unix_seconds}
        # What is not above 0 is relative to now among commands, and never here.
        arguments |= {k: None if at is None else max(at, 1e-6) for k, at in times.items()}
        return Answer(await self._commands.act("cut", arguments))

    async def _runs(self, asked: Asked) -> Answer:
        return _listed(await self._commands.act("runs", {}), "id", asked)

    async def _run(self, asked: Asked) -> Answer:
        wanted = asked.path["id"]
        found = await self._commands.act("runs", {"id": wanted})
        if found is None:
            words = f"run {shown(wanted)}: there is none of that id; GET /v1/runs lists all"
            return Answer(RequestProblem(error=words), 404)
        return Answer(found)

    async def _targets(self, _asked: Asked) -> Answer:
        return Answer(await self._commands.act("targets", {}))

    async def _events(self, _asked: Asked) -> Response:
        answer = self._streams.answer()
        return self._application.refuse(503, answer) if isinstance(answer, str) else answer

    async def _news(self, seen: object) -> tuple[object, bytes]:
        """Who is there and what is recorded, whenever that changes."""
        status = await self._commands.act("status", {})
        del status["now_unix_seconds"], status["streams"]
        status.pop("ignored_adverts", None)  # of noise in the network there is news all the time
        news = json.dumps(status).encode()
        return news, b"" if news == seen else news


def _listed(items: Sequence[dict[str, Any]], key: str, asked: Asked) -> Answer:
    """The part of a list that is asked for."""
    after, limit = asked.query.get("after"), int(asked.query.get("limit", DEFAULT_LIMIT))
    left = sorted((i for i in items if after is None or i[key] > after), key=lambda i: i[key])
    is_more = len(left) > limit
    shown = left[:limit]
    return Answer({"items": shown, "next": shown[-1][key] if is_more else None})
