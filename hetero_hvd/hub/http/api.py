"""What the hub answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
from hetero_hvd.hub.store import SampleStore
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.event_streams import EventStreams
from hetero_hvd.run.web.operations import (
    EVENT_STREAM,
    Answer,
    ApiOperation,
    Asked,
    BodyLimits,
    Handler,
    HttpApi,
    Role,
)
from hetero_hvd.run.web.pages import HEADERS, page_routes
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from hetero_hvd.security.token import holds

MAX_BODY_BYTES = 2**20
BODY_SECONDS = 10.0
EVENT_SECONDS = 1.0
EVENTS = "/v1/events"
PAGE = Path(__file__).parent / "page" / "hub.html"


@dataclass(frozen=True, kw_only=True)
class HubAccess:
    """Who may do what.

    Attributes:
        access: Of the roles `read` and `operate`.
        ingest: Token of those who may send samples; None: nobody but who may operate.
        origins: Of pages elsewhere that may ask.
    """

    access: Access
    ingest: bytes | None = None
    origins: tuple[str, ...] = ()

    def may(self, role: Role, authorization: str) -> bool:
        """Whether a request with this header may act in a role."""
        if role == "read":
            return self.access.may_read(authorization)
        is_sender = self.ingest is not None and holds(authorization, self.ingest)
        is_allowed = role == "ingest" and is_sender
        return is_allowed or self.access.may_operate(authorization)

    def is_from_here(self, origin: str, host: str) -> bool:
        """Whether a page that asks is of this server, or listed."""
        return not origin or origin in self.origins or origin.partition("://")[2] == host


class HubApi:
    """The routes. Used in the loop's thread only.

    Args:
        access: Who may do what.
        store: Of the hub.
        commands: Carries out orders.
        ingest: Takes samples of others.
        door: Is told whose requests are answered.

    Attributes:
        refused: Requests turned away.
    """

    def __init__(
        self,
        access: HubAccess,
        store: SampleStore,
        commands: HubCommands,
        ingest: ForeignIngest,
        door: ConnectionLimiter,
    ) -> None:
        self._access = access
        self._store = store
        self._commands = commands
        self._ingest = ingest
        self._door = door
        self._streams = EventStreams(self._news, EVENT_SECONDS)
        self.refused = 0
        self.operations = (
            ApiOperation("GET", "/v1/status", "read", "The hub in short.", self._status),
            ApiOperation("GET", "/v1/clients", "read", "Nodes and other sources.", self._clients,
                      ("after", "limit"), None, PartOfList),
            ApiOperation("GET", "/v1/latest", "read", "The newest sample of each.", self._latest,
                      ("after", "limit", "node"), None, PartOfList),
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
            ApiOperation("GET", EVENTS, "read", "News of nodes and sessions, as they come.",
                      self._events, media=EVENT_STREAM),
            ApiOperation("GET", "/v1/series", "read", "A figure of a node over time.",
                      StoredSeries(store).act,
                      ("node", "figure", "device", "from", "to", "points"), None, FigureOverTime),
            ApiOperation("POST", "/v1/ingest", "ingest", "Store samples of another program.",
                      ingest.act, (), IngestBatch, Ingested),
        )  # fmt: skip

    def app(self) -> Starlette:
        """The ASGI application."""
        api = HttpApi(
            self.operations,
            parameters=PARAMETERS,
            limits=BodyLimits(MAX_BODY_BYTES, BODY_SECONDS),
            refuse=self._refuse,
            title="hetero_hvd hub",
        )
        routes = api.routes(self._guarded)
        routes += page_routes(PAGE, partial(self._guarded, None))
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(self._access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        return Starlette(routes=routes, middleware=[cors] if self._access.origins else [])

    def _guarded(self, role: Role | None, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            host = request.headers.get("host", "")
            peer = tuple(request.client or ())
            if not self._access.access.is_addressed_here(host):
                return self._refuse(421, "this server goes by another name")
            if role is not None:
                if not self._access.may(role, request.headers.get("authorization", "")):
                    return self._refuse(401, f"needs the token of the role {role!r}")
                origin = request.headers.get("origin", "")
                if role != "read" and not self._access.is_from_here(origin, host):
                    return self._refuse(403, "a page elsewhere asks; see --http-cors")
                self._door.authenticated(peer)
            self._door.tolerate(peer)
            response = await handler(request)
            response.headers.update(HEADERS)
            return response

        return guarded

    def _refuse(self, code: int, words: str) -> Response:
        self.refused += 1
        headers = {"WWW-Authenticate": "Bearer"} if code == 401 else {}  # noqa: PLR2004 - HTTP
        return JSONResponse({"error": words}, code, headers=headers | HEADERS)

    async def _status(self, _asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        del status["nodes"], status["sessions"], status["streams"]
        return Answer(status | {"refused": self.refused, "ingest_refused": self._ingest.refused})

    async def _clients(self, asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        return _listed(status["nodes"], "node", asked)

    async def _sessions(self, asked: Asked) -> Answer:
        status = await self._commands.act("status", {})
        return _listed(status["sessions"], "name", asked)

    async def _latest(self, asked: Asked) -> Answer:
        wanted = asked.query.get("node")
        items = [
            {
                "node": frame.node,
                "at_unix_seconds": frame.recorded.at_microseconds / MICROSECONDS,
                "sequence": frame.recorded.sequence,
                "sample": msgspec.msgpack.decode(frame.recorded.sample),
            }
            for frame in dict(self._store.latest).values()
            if wanted is None or frame.node == wanted
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
        found = await self._commands.act("runs", {"id": asked.path["id"]})
        return Answer({"error": "there is no such run"}, 404) if found is None else Answer(found)

    async def _events(self, _asked: Asked) -> Response:
        answer = self._streams.answer()
        return self._refuse(503, answer) if isinstance(answer, str) else answer

    async def _news(self, seen: object) -> tuple[object, bytes]:
        """Who is there and what is recorded, whenever that changes."""
        status = await self._commands.act("status", {})
        del status["now_unix_seconds"], status["streams"]
        news = json.dumps(status).encode()
        return news, b"" if news == seen else news


def _listed(items: Sequence[dict[str, Any]], key: str, asked: Asked) -> Answer:
    """The part of a list that is asked for."""
    after, limit = asked.query.get("after"), int(asked.query.get("limit", DEFAULT_LIMIT))
    left = sorted((i for i in items if after is None or i[key] > after), key=lambda i: i[key])
    is_more = len(left) > limit
    shown = left[:limit]
    return Answer({"items": shown, "next": shown[-1][key] if is_more else None})
