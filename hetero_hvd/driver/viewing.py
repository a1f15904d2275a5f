"""What the HTTP side of a job shows, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero_hvd.config import JobConfig
from hetero_hvd.core.live import LiveView
from hetero_hvd.driver.ending import Ending
from hetero_hvd.driver.metrics import Metrics, service_discovery
from hetero_hvd.driver.team import Team
from hetero_hvd.driver.tracing import Tracing
from hetero_hvd.driver.web import Web
from hetero_hvd.driver.web.app import Sources

EXIT_STOPPED = 143


class Viewing:
    """Joins the journal to the page, and the page's orders to the team.

    Args:
        job: The job's settings.
        output: Folder of the run.
        team: The workers.
        facts: What others know, in addition to the team's own status.
        tracing: Takes orders for traces.
    """

    def __init__(
        self,
        job: JobConfig,
        output: Path,
        team: Team,
        tracing: Tracing,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._facts = facts
        self._run_id = output.name
        self._team = team
        self._tracing = tracing
        self._view = LiveView()
        self._web = Web(job, output)
        self._metrics = Metrics(self._run_id)
        team.journal.subscribe(self._view.observe)
        team.journal.subscribe(self._metrics.observe)

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
                metrics=lambda: self._metrics.render()[0],
                trace=self._tracing.start,
            )
        )

    async def close(self) -> None:
        """Answer no more."""
        await self._web.close()

    def _status(self) -> dict[str, Any]:
        status = self._team.status() | self._facts()
        status["refused"]["http"] = self._web.refused
        return status

    def _targets(self) -> list[dict[str, Any]]:
        return service_discovery(self._status(), target=self._web.target, run_id=self._run_id)

    def _stop(self) -> str:
        self._team.end(Ending(EXIT_STOPPED, "ended by an order over HTTP"))
        return "all workers are asked to end"
