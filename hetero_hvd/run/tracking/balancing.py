"""The balancer at work: timings in, plans and decisions out, and what the next job should know."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from hetero_hvd.config import ClusterConfig
from hetero_hvd.core.balance.balancer_state import BalancerState
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.policies.registry import make_policy
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.core.balance.step_time import StepTimeEstimator
from hetero_hvd.core.step_table import Observed
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages import (
    BatchPlan,
    Calibrated,
    Decided,
    Evaluated,
    SetAsideReported,
    StepsTimed,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.run_files import CHANGE_SECONDS
from hetero_hvd.run.tracking.speed_store import CurveStore

SAVE_SECONDS = 60.0
MAX_DECISIONS_BYTES = 8 * 2**20
"""Of the file; what came before it is kept up to as much again."""


class Balancing:
    """Follows the timings of a run. Without it there are no plans: its errors end the run.

    Args:
        config: Of the job.
        folder: Of the run: decisions.jsonl there gets one JSON line for each decision, and
            curves.json in the folder above keeps what the next job should know about the workers;
            None: nothing is kept.
        bus: Hears of all plans and decisions.
        say: Shows a line.
        balance: How to divide the batch; None: as the job's settings say.

    Attributes:
        remembered: What earlier jobs have learnt about the workers.
    """

    def __init__(
        self,
        config: ClusterConfig,
        folder: Path | None,
        bus: EventBus,
        say: Callable[[str], None],
        *,
        balance: BalanceConfig | None = None,
    ) -> None:
        job = config.job
        self._bus = bus
        self.remembered: dict[WorkerId, SpeedProfile] = {}
        self._saved_at_seconds = time.monotonic()
        self._explain = say if job.explain else None
        self._config = balance or _balance_config(config)
        self._policy = make_policy(self._config, self.remembered)
        self._store: CurveStore | None = None
        self._decisions: KeptFile | None = None
        if folder is not None:
            path = folder / "decisions.jsonl"
            self._decisions = KeptFile(path, say, max_bytes=MAX_DECISIONS_BYTES).touch()
            if job.remember:
                self._store = CurveStore(folder.parent / "curves.json", config.nodes)
        self._workers: tuple[WorkerId, ...] = ()
        self._rendezvous_id = 0

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from the next membership on."""
        if grain != self._config.grain:
            self._config = replace(self._config, grain=grain)
            self._policy = make_policy(self._config, self.remembered)

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan."""
        return self._policy.plan

    @property
    def curves(self) -> Mapping[WorkerId, StepTimeEstimator]:
        """What is known now of the workers' speeds; empty where the rule keeps no curves."""
        return self._policy.estimators if isinstance(self._policy, BalancerState) else {}

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus.

        Raises:
            InfeasiblePlanError: The workers cannot hold the global batch.
        """
        match event:
            case WorkersJoined():
                self._workers = event.workers
                self._rendezvous_id = event.rendezvous_id
                if self._store is not None:
                    self.remembered.update(self._store.load(event))
                self._balance(event)
            case Calibrated() | StepsTimed() if event.rendezvous_id == self._rendezvous_id:
                self._balance(event)
            case SetAsideReported():
                self.keep(
                    Decided(
                        rendezvous_id=self._rendezvous_id,
                        step=event.step,
                        action=event.what,
                        reason=event.words,
                        current_seconds=event.with_seconds,
                        proposed_seconds=event.without_seconds,
                    )
                )
            case Evaluated() if event.needs_all and isinstance(self._policy, BalancerState):
                self._policy.need_all()

    def save_if_due(self, fallen: set[WorkerId]) -> None:
        """Keep what was learnt, now and then.

        Args:
            fallen: Workers that are slow now: that is not what they are.
        """
        if time.monotonic() > self._saved_at_seconds + SAVE_SECONDS:
            self.save(fallen, wait_seconds=0.0)

    def save(self, fallen: set[WorkerId], *, wait_seconds: float = CHANGE_SECONDS) -> None:
        """Keep what was learnt; see `save_if_due`, which in the loop waits for no other job."""
        self._saved_at_seconds = time.monotonic()
        if self._store is not None and isinstance(self._policy, BalancerState):
            curves = self._policy.curves
            well = {worker: curves[worker] for worker in curves.keys() - fallen}
            self._store.save(well, wait_seconds=wait_seconds)

    def close(self) -> None:
        """Close the file."""
        if self._decisions is not None:
            self._decisions.close()

    def _balance(self, event: WorkersJoined | Calibrated | StepsTimed) -> None:
        for result in self._policy.handle(event, now_seconds=time.monotonic()):
            if isinstance(result, BatchPlan):
                self._bus.publish(result)
            else:
                if self._explain:
                    self._explain(f"step {result.step}: {result}")
                self._decided(result)

    def _decided(self, decision: Decision) -> None:
        changed = {str(worker): ratio for worker, ratio in decision.changed.items()}
        facts = asdict(replace(decision, changed={})) | {"changed": changed}
        event = Decided(rendezvous_id=self._rendezvous_id, **facts)
        self._bus.publish(event)
        self.keep(event)

    def keep(self, event: Decided) -> None:
        """Write a decision into its file."""
        if self._decisions is None:
            return
        names = list(map(str, self._workers))
        line = msgspec.structs.asdict(event) | {"workers": names}
        self._decisions.append(msgspec.json.encode(line) + b"\n")


def _balance_config(config: ClusterConfig) -> BalanceConfig:
    job = config.job
    hints = {n.name: n.relative_speed for n in config.nodes if n.relative_speed is not None}
    return BalanceConfig(
        rule=job.rule,
        balance=job.balance,
        baseline_steps=job.baseline_steps,
        min_gain_ratio=job.min_gain_ratio,
        grain=job.grain if job.training_mode == "reproducible" else 1,
        calibrate=job.calibrate,
        relative_speeds=hints,
    )
