"""The books of a run: who trains together, how far it is, and all that follows the training."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from hetero_hvd.config import ClusterConfig
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.core.step_table import Observed
from hetero_hvd.core.view.meanings import Say
from hetero_hvd.messages import EpochBegan, Finished, StepsTimed, WorkerId, WorkersJoined
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
        folder: Of the run: for the decisions of the balancer and the timings that they were based
            on; None: neither is kept.
        bus: All that happens; balancing, summary, diagnosis, progress and timings observe it.
        balance: How to divide the batch; None: as the job's settings say.

    Attributes:
        balancing: Makes the plans.
        diagnosis: Judges the run.
        summary: Of the run so far.
        workers: Members of the newest rendezvous in rank order.
        rendezvous_id: Of the newest rendezvous heard of; 0 before.
        resets_without_step: Rendezvous in a row in which no step was applied.
    """

    def __init__(
        self,
        config: ClusterConfig,
        say: Say,
        folder: Path | None,
        bus: EventBus,
        *,
        balance: BalanceConfig | None = None,
    ) -> None:
        job = config.job
        all_uniform = 2**63
        self.summary = Summary(baseline_steps=job.baseline_steps if job.balance else all_uniform)
        self.balancing = Balancing(config, folder, bus, say, balance=balance)
        progress = Progress(say, interval_seconds=job.progress_seconds)
        self.diagnosis = RunDiagnosis(self.balancing, bus, progress)
        self._timings = TimingLog(folder, say=say) if folder is not None else None
        self.workers: tuple[WorkerId, ...] = ()
        self.rendezvous_id = 0
        self.resets_without_step = 0
        self._applied_steps = -1
        self._epoch = -1
        self._heard: deque[float] = deque(maxlen=2)
        """When the two newest exchanges were heard of: what comes with one has happened since the
        one before the last, as an exchange is told after a further step."""
        self._bus = bus
        bus.subscribe(self.observe, "")
        if self._timings is not None:
            bus.subscribe(self._timings.observe, "the file of timings")
        bus.subscribe(self.balancing.observe, "")
        bus.subscribe(self.summary.observe, "")
        bus.subscribe(self.summary.observe_tables, "the summary")
        bus.subscribe(progress.observe, "the progress shown")
        bus.subscribe(self.diagnosis.observe, "the verdict")

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Follow who trains; an observer of the bus."""
        match event:
            case WorkersJoined():
                self.rendezvous_id = event.rendezvous_id
                self.workers = event.workers
                is_stuck = event.applied_steps == self._applied_steps
                self.resets_without_step = self.resets_without_step + 1 if is_stuck else 0
                self._applied_steps = event.applied_steps
                if not self._heard:
                    self._heard.append(at_unix_seconds)
            case StepsTimed():
                if event.epoch != self._epoch:
                    self._epoch = event.epoch
                    within = max(0.0, at_unix_seconds - self._heard[0]) if self._heard else None
                    began = EpochBegan(epoch=event.epoch, step=event.step, within_seconds=within)
                    self._bus.publish(began)
                self._heard.append(at_unix_seconds)
            case Finished():
                self.resets_without_step = 0  # another trainer begins at step 0 again
                self._heard.clear()

    def close(self) -> None:
        """Close the files; keep what was learnt about the workers."""
        self.diagnosis.close()
        self.balancing.close()
        if self._timings is not None:
            self._timings.close()
