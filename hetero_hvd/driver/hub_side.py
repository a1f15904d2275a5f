"""What a job has to do with the hub of its cluster: its phases are recorded, and it is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hetero_hvd.config import JobConfig
from hetero_hvd.discovery.hub_client import HubOrders
from hetero_hvd.driver.phase_recordings import PhaseRecordings
from hetero_hvd.driver.run_reports import RunReports
from hetero_hvd.run.event_bus import EventBus


class HubSide:
    """Used in the loop's thread only.

    Args:
        job: The job's settings.
        folder: Of the run.
        bus: All that happens.
        say: Tells people what the hub does not do.
    """

    def __init__(
        self, job: JobConfig, folder: Path, bus: EventBus, say: Callable[[str], None]
    ) -> None:
        hub = HubOrders(job.cluster_key_file, job.hub)
        self.phases = PhaseRecordings(hub, say)
        self.reports = RunReports(hub, folder, say)
        bus.subscribe(self.phases.observe, "the recordings of phases")
        bus.subscribe(self.reports.observe, "the reports to the hub")
