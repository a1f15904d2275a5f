"""The books of a run: who trains together, how far it is, and all that follows the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hetero_hvd.config import ClusterConfig
from hetero_hvd.core.step_table import Observed
from hetero_hvd.messages import Finished, WorkerId, WorkersJoined
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.tracking.balancing import Balancing
from hetero_hvd.run.tracking.diagnosis import RunDiagnosis
from hetero_hvd.run.tracking.progress import Progress
from hetero_hvd.run.tracking.summary import Summary

MAX_RESETS_WITHOUT_STEP = 20


class RunTracker:
    """Keeps the books of a run.

    Args:
        config: Of the job.
        say: Shows a line.
        decisions: File for the decisions of the balancer; beside it the timings that they were
            based on are kept.
        bus: All that happens; balancing, summary, diagnosis, progress and timings observe it.

    Attributes:
        balancing: Makes the plans.
        diagnosis: Judges the run.
        summary: Of the run so far.
        workers: Members of the newest rendezvous in rank order.
        rendezvous_id: Of the newest rendezvous heard of; 0 before.
        resets_without_step: Rendezvous in a row in which no step was applied.
    """

    def __init__(
        self, config: ClusterConfig, say: Callable[[str], None], decisions: Path, bus: EventBus
    ) -> None:
        job = config.job
        all_uniform = 2**63
        prices = [node.price_per_hour for node in config.nodes if node.price_per_hour is not None]
        self.summary = Summary(baseline_steps=job.baseline_steps if job.balance else all_uniform)
        self.summary.price_per_hour = sum(prices) if prices else None
        self.balancing = Balancing(config, decisions, bus, say)
        progress = Progress(say, interval_seconds=job.progress_seconds)
        self.diagnosis = RunDiagnosis(self.balancing, bus, progress)
        self._timings = TimingLog(decisions.parent, say=say)
        self.workers: tuple[WorkerId, ...] = ()
        self.rendezvous_id = 0
        self.resets_without_step = 0
        self._applied_steps = -1
        bus.subscribe(self.observe, "")
        bus.subscribe(self._timings.observe, "the file of timings")
        bus.subscribe(self.balancing.observe, "")
        bus.subscribe(self.summary.observe, "")
        bus.subscribe(self.summary.observe_tables, "the summary")
        bus.subscribe(progress.observe, "the progress shown")
        bus.subscribe(self.diagnosis.observe, "the verdict")

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Follow who trains; an observer of the bus."""
        match event:
            case WorkersJoined():
                self.rendezvous_id = event.rendezvous_id
                self.workers = event.workers
                is_stuck = event.applied_steps == self._applied_steps
                self.resets_without_step = self.resets_without_step + 1 if is_stuck else 0
                self._applied_steps = event.applied_steps
            case Finished():
                self.resets_without_step = 0  # another trainer begins at step 0 again

    def close(self) -> None:
        """Close the files; keep what was learnt about the workers."""
        self.diagnosis.close()
        self.balancing.close()
        self._timings.close()
