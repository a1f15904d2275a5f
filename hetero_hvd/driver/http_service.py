"""What the HTTP side of a job shows, and what it may do."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveView
from hetero_hvd.driver.controller import JobController
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.traces import TraceOrders
from hetero_hvd.exit_codes import EXIT_TERMINATED
from hetero_hvd.probes.sampling.local_samples import max_age_seconds
from hetero_hvd.run.records.run_folder import RunFolder
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.metrics import Metrics, service_discovery

MAX_SCRAPE_SECONDS = 30.0
"""For a slower scraper no run's end is delayed."""

PATIENCE = 1.5
"""In intervals of the scraper."""


class HttpService:
    """Joins the bus to the page, and the page's orders to the team.

    Args:
        job: The job's settings.
        folder: Of the run.
        team: The workers.
        facts: What others know, in addition to the team's own status.
        tracing: Takes orders for traces.
    """

    def __init__(
        self,
        job: JobConfig,
        folder: RunFolder,
        team: JobController,
        tracing: TraceOrders,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._facts = facts
        self._team = team
        self._tracing = tracing
        self._view = LiveView(team.tracker.diagnosis.findings)
        self._web = Web(job, folder.path)
        age_seconds = max_age_seconds(job.sample_seconds)
        self._metrics = Metrics(folder.run_id, max_age_seconds=age_seconds)
        self._scraped_at: deque[float] = deque(maxlen=2)
        self._is_seen = asyncio.Event()
        team.bus.subscribe(self._view.observe, "the page")
        team.bus.subscribe(self._metrics.observe, "the metrics")

    @property
    def url(self) -> str:
        """Of the page, without a slash at the end."""
        return self._web.url

    async def listen(self) -> None:
        """Answer requests from now on; see `Web.listen`."""
        await self._web.listen(
            Sources(
                state=self._view.state,
                num_events=lambda: self._view.num_events,
                status=self._status,
                targets=self._targets,
                drain=self._team.slots.drain,
                stop=self._stop,
                metrics=self._scraped,
                trace=self._tracing.start,
            )
        )

    async def close(self) -> None:
        """Let a regular scraper see how the run ended, then answer no more."""
        seconds = _seconds_to_next(tuple(self._scraped_at), time.monotonic())
        self._is_seen.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_seen.wait(), seconds)
        await self._web.close()

    def hurry(self) -> None:
        """Wait for no scraper any more."""
        self._is_seen.set()

    def _scraped(self) -> bytes:
        self._scraped_at.append(time.monotonic())
        self._is_seen.set()
        return self._metrics.render()[0]

    def _status(self) -> dict[str, Any]:
        status = self._team.status() | self._facts()
        status["refused"]["http"] = self._web.refused
        return status

    def _targets(self) -> list[dict[str, Any]]:
        return service_discovery(self._status(), target=self._web.target)

    def _stop(self) -> str:
        self._team.end(JobResult(EXIT_TERMINATED, "ended by an order over HTTP"))
        return "all workers are asked to end"


def _seconds_to_next(scraped_at: Sequence[float], now_seconds: float) -> float:
    """How long to wait for the next of regular scrapes; 0 where there are none."""
    if len(scraped_at) < 2:  # noqa: PLR2004 - an interval has two ends
        return 0.0
    interval_seconds = scraped_at[-1] - scraped_at[-2]
    if interval_seconds > MAX_SCRAPE_SECONDS:
        return 0.0
    return max(0.0, scraped_at[-1] + PATIENCE * interval_seconds - now_seconds)
