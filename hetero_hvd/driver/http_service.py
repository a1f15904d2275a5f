"""What the HTTP side of a job shows, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveView
from hetero_hvd.core.view.meanings import Say
from hetero_hvd.core.view.plots.run_plots import RunPlots
from hetero_hvd.driver.controller import JobController
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.traces import TraceOrders
from hetero_hvd.exit_codes import EXIT_TERMINATED
from hetero_hvd.messages import TokenFileReported
from hetero_hvd.probes.sampling.local_samples import max_age_seconds
from hetero_hvd.run.records.run_folder import RunFolder
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.scraping.exposition import Exposition
from hetero_hvd.run.web.scraping.metrics import Metrics
from hetero_hvd.run.web.scraping.scrapes import Scrapes
from hetero_hvd.run.web.scraping.targets import own_target, service_discovery


class HttpService:
    """Joins the bus to the page, and the page's orders to the team.

    Args:
        job: The job's settings.
        folder: Of the run.
        team: The workers.
        facts: What others know, in addition to the team's own status.
        tracing: Takes orders for traces.
        say: Tells people of a token file that cannot be used any more.
    """

    def __init__(
        self,
        job: JobConfig,
        folder: RunFolder,
        team: JobController,
        tracing: TraceOrders,
        facts: Callable[[], dict[str, Any]],
        *,
        say: Say,
    ) -> None:
        self._facts = facts
        self._team = team
        self._tracing = tracing
        self._view = LiveView(team.tracker.diagnosis.findings)
        self._plots = RunPlots()
        self._folder = folder.path
        self._say = say
        self._web = Web(job, folder.path, self._token_file_told)
        age_seconds = max_age_seconds(job.sample_seconds)
        self._run_id = folder.run_id
        self._metrics = Metrics(folder.run_id, max_age_seconds=age_seconds)
        self._scrapes = Scrapes()
        team.bus.subscribe(self._view.observe, "the page")
        team.bus.subscribe(self._plots.observe, "the plots")
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
                plots=self._plots.view,
                folder=self._folder,
                trace=self._tracing.start,
            )
        )

    def look(self) -> None:
        """See what has changed of the files that say who may come; call it often."""
        self._web.look()

    async def close(self) -> None:
        """Let a regular scraper see how the run ended, then answer no more."""
        await self._scrapes.next()
        await self._web.close()

    def hurry(self) -> None:
        """Wait for no scraper any more."""
        self._scrapes.hurry()

    def _token_file_told(self, line: str) -> None:
        self._say(line, "warning")
        self._team.bus.publish(TokenFileReported(words=line))

    def _scraped(self, accept: str) -> Exposition:
        self._scrapes.note()
        return self._metrics.render(accept)

    def _status(self) -> dict[str, Any]:
        status = self._team.status() | self._facts()
        status["refused"]["http"] = self._web.refused
        return status

    def _targets(self) -> list[dict[str, Any]]:
        return service_discovery(self._status(), own_target(self._web.url, self._run_id))

    def _stop(self) -> str:
        self._team.end(JobResult(EXIT_TERMINATED, "ended by an order over HTTP"))
        return "all workers are asked to end"
