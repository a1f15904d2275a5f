"""What the driver answers over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response

from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS
from hetero_hvd.core.view.live import LiveState
from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.run_plots import PlotsView
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.application import HttpApplication
from hetero_hvd.run.web.event_streams import EventStreams
from hetero_hvd.run.web.operations import (
    EVENT_STREAM,
    TEXT,
    Answer,
    ApiOperation,
    Asked,
    BodyLimits,
    Parameters,
)
from hetero_hvd.run.web.orders import (
    DrainOrder,
    OrderTaken,
    PlotQuery,
    ScrapeTargets,
    StopOrder,
    TraceOrder,
)
from hetero_hvd.run.web.problems import RequestProblem
from hetero_hvd.run.web.recorded import ListedRun, PlotsBeside, RunAdvice, runs_beside
from hetero_hvd.run.web.scraping.exposition import Exposition
from hetero_hvd.security.connection_limiter import ConnectionLimiter

PAGE = Path(__file__).parent / "page" / "index.html"
EVENT_SECONDS = 0.5
"""Between two looks for news: a fast run must not flood its viewers."""

_PLACE = {"in": "query", "schema": {"type": "number", "minimum": 0, "maximum": MAX_TIME_SECONDS}}
PARAMETERS: Parameters = {
    "axis": {"in": "query", "schema": {"type": "string", "enum": ["step", "time"]}},
    "from": _PLACE,
    "to": _PLACE,
    "points": {"in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 4096}},
    "worker": {"in": "query", "schema": {"type": "string", "maxLength": 100}},
    "with": {"in": "query", "schema": {"type": "string", "maxLength": 2048}},
}
MAX_BODY_BYTES = 4096
BODY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the answers come from; all are called in the loop's thread.

    Attributes:
        state: The live view, JSON.
        num_events: Grows with each change of it.
        status: The job's state in short.
        targets: What Prometheus should scrape, in the form of http_sd.
        drain: Lets NODE or NODE:SLOT go; what will happen in words, or UserError.
        stop: Ends the job.
        metrics: The page for a scraper, by its Accept header; None: this driver has no exporter.
        trace: Starts a window of profiler traces; None: it cannot.
        plots: What is drawn of a part of the run, with the phases of some workers, None: of all;
            None: this server draws nothing.
        folder: Of the run's records; None: there is none.
    """

    state: Callable[[], Any]
    num_events: Callable[[], int]
    status: Callable[[], dict[str, Any]]
    targets: Callable[[], list[dict[str, Any]]]
    drain: Callable[[str], str]
    stop: Callable[[], str]
    metrics: Callable[[str], Exposition] | None = None
    trace: Callable[[dict[str, Any]], str] | None = None
    plots: Callable[[PlotRange, Sequence[str] | None], PlotsView] | None = None
    folder: Path | None = None


class Answers:
    """The operations.

    Args:
        access: Who may do what.
        sources: Where the answers come from.
        door: Is told whose requests are answered; None in an application without a server.
    """

    def __init__(
        self, access: Access, sources: Sources, door: ConnectionLimiter | None = None
    ) -> None:
        self._sources = sources
        self._advice = None if sources.folder is None else RunAdvice(sources.folder)
        self._beside = None if sources.folder is None else PlotsBeside(sources.folder)
        self._streams = EventStreams(self._news, EVENT_SECONDS)
        self._application = HttpApplication(
            self._operations(),
            page=PAGE,
            access=access,
            door=door or ConnectionLimiter("http"),
            parameters=PARAMETERS,
            limits=BodyLimits(MAX_BODY_BYTES, BODY_SECONDS),
            title="hetero_hvd run",
        )

    def app(self) -> Starlette:
        """The ASGI application."""
        return self._application.app()

    @property
    def refused(self) -> int:
        """Requests turned away."""
        return self._application.refused

    def _operations(self) -> tuple[ApiOperation, ...]:
        return (
            ApiOperation("GET", "/state", "read", "All that the page shows.", self._state,
                      result=LiveState),
            ApiOperation("GET", "/events", "read", "The same, whenever it changes.",
                      self._events, media=EVENT_STREAM),
            ApiOperation("GET", "/plots", "read", "What is drawn of a part of the run.",
                      self._plots, ("axis", "from", "to", "points", "worker", "with"), None,
                      PlotsView),
            ApiOperation("GET", "/advice", "read", "What to change, a line for each.",
                      self._advise, result=list[str]),
            ApiOperation("GET", "/runs", "read", "The runs in the same folder, newest first.",
                      self._runs, result=list[ListedRun]),
            ApiOperation("GET", "/status", "read", "The job in short.", self._status),
            ApiOperation("GET", "/metrics", "read", "For Prometheus.", self._metrics,
                      media=TEXT),
            ApiOperation("GET", "/sd", "read", "What Prometheus should scrape.",
                      self._targets, result=list[ScrapeTargets]),
            ApiOperation("POST", "/drain", "operate", "Let a node or slot go.", self._drain,
                      body=DrainOrder, result=OrderTaken),
            ApiOperation("POST", "/stop", "operate", "End the job.", self._stop,
                      body=StopOrder, result=OrderTaken),
            ApiOperation("POST", "/trace", "operate", "Record the next steps.", self._trace,
                      body=TraceOrder, result=OrderTaken),
        )  # fmt: skip

    async def _state(self, _asked: Asked) -> Answer:
        return Answer(self._told())

    def _told(self) -> Any:  # noqa: ANN401 - as in `Sources`
        state = self._sources.state()
        state.now_unix_seconds = time.time()
        return state

    async def _plots(self, asked: Asked) -> Answer:
        if self._sources.plots is None:
            return Answer(RequestProblem(error="this run draws no plots"), 404)
        wanted = msgspec.convert(asked.query, PlotQuery, strict=False)
        workers = None if wanted.worker is None else [wanted.worker]
        own = self._sources.plots(wanted.range, workers)
        if self._beside is None or not wanted.beside:
            return Answer(own)
        state = self._sources.state()
        folders = wanted.beside.split("/")
        return Answer(await self._beside.overlaid((state.name, own), folders, wanted.range))

    async def _advise(self, _asked: Asked) -> Answer:
        if self._advice is None:
            return Answer(RequestProblem(error="this run keeps no records"), 404)
        return Answer(await self._advice.lines())

    async def _runs(self, _asked: Asked) -> Answer:
        folder = self._sources.folder
        return Answer([] if folder is None else await asyncio.to_thread(runs_beside, folder))

    async def _status(self, _asked: Asked) -> Answer:
        return Answer(self._sources.status())

    async def _targets(self, _asked: Asked) -> Answer:
        return Answer(self._sources.targets())

    async def _metrics(self, asked: Asked) -> Answer | Response:
        if self._sources.metrics is None:
            return Answer(RequestProblem(error="this run has no exporter"), 404)
        found = self._sources.metrics(asked.accept)
        return Response(found.page, headers={"content-type": found.media})

    async def _events(self, _asked: Asked) -> Response:
        answer = self._streams.answer()
        return self._application.refuse(503, answer) if isinstance(answer, str) else answer

    async def _news(self, seen: object) -> tuple[object, bytes]:
        number = self._sources.num_events()
        return number, b"" if number == seen else msgspec.json.encode(self._told())

    async def _drain(self, asked: Asked) -> Answer:
        return Answer({"done": self._sources.drain(asked.body.target)})

    async def _stop(self, _asked: Asked) -> Answer:
        return Answer({"done": self._sources.stop()})

    async def _trace(self, asked: Asked) -> Answer:
        if self._sources.trace is None:
            return Answer(RequestProblem(error="this run takes no traces"), 404)
        return Answer({"done": self._sources.trace(msgspec.to_builtins(asked.body))})
