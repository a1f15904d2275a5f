"""What the workers tell about the training: on to the balancer, the summary and the terminal."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import msgspec

from hetero_hvd.config import ClusterConfig
from hetero_hvd.core.balance.cluster import BalancerState
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.policies import make_policy
from hetero_hvd.core.balance.settings import BalanceConfig, Rule
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.diagnosis.stall import StallWatch
from hetero_hvd.core.diagnosis.straggler import StragglerWatch
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.event_bus import EventBus
from hetero_hvd.driver.records.timings import TimingLog
from hetero_hvd.driver.training.progress import Progress
from hetero_hvd.driver.training.speed_store import CurveStore
from hetero_hvd.driver.training.summary import Summary
from hetero_hvd.driver.training.tolerance import Tolerance
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages import (
    BatchPlan,
    Decided,
    Evaluated,
    Finding,
    Finished,
    FromWorker,
    Heartbeat,
    Judged,
    OutOfMemory,
    Recovered,
    StalenessEnded,
    StepsTimed,
    WorkerId,
    WorkersJoined,
)

MAX_RESETS_WITHOUT_STEP = 20
SAVE_SECONDS = 60.0


class RunTracker:
    """Keeps the books of a run.

    Args:
        config: Of the job.
        console: Where to show the progress.
        decisions: File that gets one JSON line for each decision of the balancer; beside it
            the timings that they were based on are kept, and curves.json in the folder above what
            the next job should know about the workers.
        journal: Hears of all plans, decisions and verdicts.

    Attributes:
        summary: Of the run so far.
        workers: Members of the newest rendezvous in rank order.
        rendezvous_id: Of the newest rendezvous heard of; 0 before.
        resets_without_step: Rendezvous in a row in which no step was applied.
    """

    def __init__(
        self,
        config: ClusterConfig,
        console: Console,
        decisions: Path,
        journal: EventBus | None = None,
    ) -> None:
        job = config.job
        self._journal = journal or EventBus()
        self._store = CurveStore(decisions.parent.parent / "curves.json", config.nodes)
        self._remembered: dict[WorkerId, SpeedProfile] = {}
        self._may_remember = job.remember
        self._saved_at_seconds = time.monotonic()
        self._stragglers = StragglerWatch()
        self._judge = Diagnoser()
        self._stall = StallWatch()
        self._tolerance = Tolerance(console.say)
        self._explain = console.say if job.explain else None
        self._cluster = make_policy(_balance_config(config), self._remembered)
        all_uniform = 2**63
        self.summary = Summary(baseline_steps=job.baseline_steps if job.balance else all_uniform)
        prices = [node.price_per_hour for node in config.nodes if node.price_per_hour is not None]
        self.summary.price_per_hour = sum(prices) if prices else None
        self._progress = Progress(console.say, interval_seconds=job.progress_seconds)
        self._decisions = KeptFile(decisions, console.say).touch()
        self._timings = TimingLog(decisions.parent, say=console.say)
        self.workers: tuple[WorkerId, ...] = ()
        self.rendezvous_id = 0
        self.resets_without_step = 0
        self._applied_steps = -1

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan."""
        return self._cluster.plan

    def take(self, message: FromWorker) -> list[BatchPlan]:
        """Account for a message.

        Returns:
            Plans for the sender.

        Raises:
            InfeasiblePlanError: The workers cannot hold the global batch.
        """
        match message:
            case WorkersJoined():
                if self._may_remember:
                    self._remembered.update(self._store.load(message))
                    for worker, curve in self._remembered.items():
                        self._stragglers.recall(worker, curve.estimator(), curve.largest_share)
                self._joined(message)
                self._timings.write(time.time(), message)
                return self._balance(message)
            case StepsTimed() if message.rendezvous_id == self.rendezvous_id:
                self._timed(message)
                plans = self._balance(message)
                with self._tolerance.watching("the verdict"):
                    self._look_for_stragglers(message)
                return plans
            case Recovered():
                self.summary.workers[message.worker].recoveries.append(message)
                self._progress.recovered(message)
            case OutOfMemory():
                self._progress.out_of_memory(message)
            case StalenessEnded():
                self._progress.staleness_ended(message)
            case Evaluated():
                self._evaluated(message)
            case Finished():
                self.summary.finished(message)
                self.resets_without_step = 0  # another trainer begins at step 0 again
                self.left(message.worker)
        return []

    def close(self) -> None:
        """Close the files; keep what was learnt about the workers."""
        self._save_curves()
        self._decisions.close()
        self._timings.close()

    def _timed(self, event: StepsTimed) -> None:
        with self._tolerance.watching("the summary"):
            self.summary.timed(event)
        with self._tolerance.watching("the verdict"):
            self._judge.observe(event)
        with self._tolerance.watching("the progress shown"):
            self._progress.timed(event, self.workers, now_seconds=time.monotonic())
        self._timings.write(time.time(), event)

    def _evaluated(self, event: Evaluated) -> None:
        self.summary.evaluated = event
        self.summary.reached(event.step)
        if event.needs_all and isinstance(self._cluster, BalancerState):
            self._cluster.need_all()
        self._progress.evaluated(event)

    def _joined(self, event: WorkersJoined) -> None:
        self.rendezvous_id = event.rendezvous_id
        self.workers = event.workers
        is_stuck = event.applied_steps == self._applied_steps
        self.resets_without_step = self.resets_without_step + 1 if is_stuck else 0
        self._applied_steps = event.applied_steps
        with self._tolerance.watching("the verdict"):
            self._judge.observe(event)
        self._stall.begin(event.workers, event.applied_steps, time.monotonic())
        self.summary.joined(event)
        self._progress.joined(event)

    def judge(self, *, of_whole_run: bool = False) -> tuple[Finding, ...]:
        """Tell the journal what limits the run as it stands, for the records."""
        findings: tuple[Finding, ...] = ()
        with self._tolerance.watching("the verdict"):
            findings = self._judge.findings(of_whole_run=of_whole_run)
        self._journal.publish(Judged(step=self._judge.step, findings=findings))
        return findings

    def beat(self, worker: WorkerId, message: Heartbeat) -> None:
        """A worker's heart has beaten."""
        self._stall.heard(worker, message, time.monotonic())

    def entered(self, worker: WorkerId, loop: int) -> None:
        """A worker begins a loop over epochs; its process's first one has the number 1."""
        self.summary.entered(worker, loop)
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
            with self._tolerance.watching("the verdict"):
                self._judge.observe(report)
            self._journal.publish(report)
            self._progress.stalled(report)

    def _look_for_stragglers(self, event: StepsTimed) -> None:
        curves = self._cluster.estimators if isinstance(self._cluster, BalancerState) else {}
        found = self._stragglers.observe(self.workers, event.timings, curves, step=event.step)
        for report in found:
            self._judge.observe(report)
            self._journal.publish(report)
        if news := self._judge.news():
            self._progress.judged(event.step, news)
            self.judge()
        if time.monotonic() > self._saved_at_seconds + SAVE_SECONDS:
            self._save_curves()

    def _save_curves(self) -> None:
        self._saved_at_seconds = time.monotonic()
        if self._may_remember and isinstance(self._cluster, BalancerState):
            fallen, curves = self._stragglers.fallen, self._cluster.curves
            self._store.save({worker: curves[worker] for worker in curves.keys() - fallen})

    def _decided(self, decision: Decision) -> None:
        changed = {str(worker): ratio for worker, ratio in decision.changed.items()}
        facts = asdict(replace(decision, changed={})) | {"changed": changed}
        event = Decided(rendezvous_id=self.rendezvous_id, **facts)
        self._journal.publish(event)
        names = list(map(str, self.workers))
        line = msgspec.structs.asdict(event) | {"workers": names}
        self._decisions.append(msgspec.json.encode(line) + b"\n")

    def _balance(self, event: WorkersJoined | StepsTimed) -> list[BatchPlan]:
        plans = []
        for result in self._cluster.handle(event, now_seconds=time.monotonic()):
            if isinstance(result, BatchPlan):
                self.summary.planned(result)
                self._progress.planned(result)
                self._journal.publish(result)
                plans.append(result)
            else:
                if self._explain:
                    self._explain(f"step {result.step}: {result}")
                self._decided(result)
        return plans


def _balance_config(config: ClusterConfig) -> BalanceConfig:
    job = config.job
    hints = {n.name: n.relative_speed for n in config.nodes if n.relative_speed is not None}
    return BalanceConfig(
        rule=cast("Rule", job.rule),
        balance=job.balance,
        baseline_steps=job.baseline_steps,
        min_gain_ratio=job.min_gain_ratio,
        grain=job.grain if job.reproducible else 1,
        relative_speeds=hints,
    )
