"""The live page and /metrics of a run without our driver, from rank 0. It takes no orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveView
from hetero_hvd.core.view.plots.run_plots import RunPlots
from hetero_hvd.errors import UserError
from hetero_hvd.probes.sampling.local_samples import max_age_seconds
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.tracking.run_tracker import RunTracker
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.scraping.exposition import Exposition
from hetero_hvd.run.web.scraping.metrics import Metrics
from hetero_hvd.run.web.scraping.scrapes import Scrapes
from hetero_hvd.run.web.scraping.targets import own_target, service_discovery

SCRAPE_SECONDS = 10.0
"""So long a script that has ended stays for the next scrape at most."""


class LeadPage:
    """Shows the run; used in the lead's loop.

    Args:
        job: Its settings.
        run_id: Of the run.
        folder: Of the run; None: it has none.
        tracker: Keeps its books.
        bus: All that happens.

    Raises:
        ConfigError: A token file or certificate cannot be used.
    """

    def __init__(
        self, job: JobConfig, run_id: str, folder: Path | None, tracker: RunTracker, bus: EventBus
    ) -> None:
        self._tracker = tracker
        self._folder = folder
        self._view = LiveView(tracker.diagnosis.findings)
        self._plots = RunPlots()
        age_seconds = max_age_seconds(job.sample_seconds)
        self._run_id = run_id
        self._metrics = Metrics(run_id, max_age_seconds=age_seconds)
        self._web = Web(job, folder)
        self._scrapes = Scrapes(max_seconds=SCRAPE_SECONDS)
        bus.subscribe(self._view.observe, "the page")
        bus.subscribe(self._plots.observe, "the plots")
        bus.subscribe(self._metrics.observe, "the metrics")

    @property
    def url(self) -> str:
        """Where it is."""
        return self._web.url

    async def listen(self) -> None:
        """Answer requests from now on; see `Web.listen`."""
        await self._web.listen(
            Sources(
                state=self._view.state,
                num_events=lambda: self._view.num_events,
                status=self._status,
                targets=self._targets,
                drain=lambda _: _refuse(),
                stop=_refuse,
                metrics=self._scraped,
                plots=self._plots.view,
                folder=self._folder,
            )
        )

    async def close(self, *, is_over: bool) -> None:
        """Answer no more; of a run that is over a regular scraper sees before how it has ended."""
        if is_over:
            await self._scrapes.next()
        await self._web.close()

    def _scraped(self, accept: str) -> Exposition:
        self._scrapes.note()
        return self._metrics.render(accept)

    def _targets(self) -> list[dict[str, Any]]:
        return service_discovery(self._status(), own_target(self._web.url, self._run_id))

    def _status(self) -> dict[str, Any]:
        tracker, plan = self._tracker, self._tracker.balancing.plan
        shares = zip(plan.workers, plan.local_batch_sizes, strict=True) if plan else ()
        return {
            "state": "training" if tracker.workers else "starting",
            "step": tracker.summary.last_step,
            "workers": {str(worker): {"member": True} for worker in tracker.workers},
            "plan": {str(worker): share for worker, share in shares} or None,
            "refused": {"http": self._web.refused},
        }


def _refuse() -> NoReturn:
    raise UserError("no driver leads this run: start it with hetero-hvd run to have one")
