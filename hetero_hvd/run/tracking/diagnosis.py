"""What limits the run, judged while it goes on; the only place in the driver that judges."""

from __future__ import annotations

import time

from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.diagnosis.stall import StallWatch
from hetero_hvd.core.diagnosis.straggler import StragglerWatch
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.messages import (
    Finding,
    Finished,
    Heartbeat,
    Judged,
    SourcesRead,
    StallReported,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.tracking.balancing import Balancing
from hetero_hvd.run.tracking.progress import Progress


class RunDiagnosis:
    """Follows the run, and tells of slow workers, stalls and of what binds it.

    Args:
        balancing: Knows the workers' speeds.
        bus: Hears of every judgement.
        progress: Shows what is new.
    """

    def __init__(self, balancing: Balancing, bus: EventBus, progress: Progress) -> None:
        self._balancing = balancing
        self._bus = bus
        self._progress = progress
        self._diagnoser = Diagnoser()
        self._stragglers = StragglerWatch()
        self._stall = StallWatch()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus."""
        match event:
            case WorkersJoined():
                for worker, curve in self._balancing.remembered.items():
                    self._stragglers.recall(worker, curve.estimator(), curve.largest_share)
                self._stragglers.begin(
                    event.workers, event.applied_steps, shares_vary=event.shares_vary
                )
                self._stall.begin(event.workers, event.applied_steps, time.monotonic())
                self._diagnoser.observe(event)
            case WorkerStarted():
                self._stragglers.started(event.worker)
                self._diagnoser.observe(event)
            case StepTable():
                self._diagnoser.observe(event)
                self._look_for_stragglers(event)
                self._balancing.save_if_due(self._stragglers.fallen)
            case SourcesRead():
                self._diagnoser.observe(event)
            case Finished():
                self._stall.left(event.worker)
            case StallReported():
                self._diagnoser.observe(event)
                self._progress.stalled(event)

    def findings(self) -> tuple[Finding, ...]:
        """The judgement as it stands."""
        return self._diagnoser.findings()

    def tell(self, *, of_whole_run: bool = False) -> tuple[Finding, ...]:
        """Tell the bus what limits the run as it stands, for the records."""
        findings: tuple[Finding, ...] = ()
        with self._bus.tolerance.watching("the verdict"):
            findings = self._diagnoser.findings(of_whole_run=of_whole_run)
        self._bus.publish(Judged(step=self._diagnoser.step, findings=findings))
        return findings

    def beat(self, worker: WorkerId, message: Heartbeat) -> None:
        """A worker's heart has beaten."""
        self._stall.heard(worker, message, time.monotonic())

    def entered(self, worker: WorkerId) -> None:
        """A worker begins a loop over epochs."""
        self._stall.returned(worker, time.monotonic())

    def left(self, worker: WorkerId) -> None:
        """A worker takes no more steps: nobody waits for it."""
        self._stall.left(worker)

    def look_for_stall(self, *, is_training: bool, slept_seconds: float = 0.0) -> None:
        """Say that nobody steps any more, and that it is over; call it often.

        Args:
            is_training: Whether anybody should.
            slept_seconds: So long the driver itself did not run since the last call.
        """
        self._stall.slept(slept_seconds)
        report = self._stall.look(time.monotonic(), is_training=is_training)
        if report is not None:
            self._bus.publish(report)

    def close(self) -> None:
        """Keep what was learnt about the workers that are well."""
        self._balancing.save(self._stragglers.fallen)

    def _look_for_stragglers(self, table: StepTable) -> None:
        found = self._stragglers.observe(
            table.workers,
            table.event.timings,
            self._balancing.curves,
            step=table.step,
            is_whole=table.is_whole,
        )
        for report in found:
            self._diagnoser.observe(report)
            self._bus.publish(report)
        if news := self._diagnoser.news():
            self._progress.judged(table.step, news)
            self.tell()
