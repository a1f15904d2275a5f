"""A job as numbers, judged as the driver does: from rows of timings to what is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_hvd.core.balance.balancer_state import BalancerState
from hetero_hvd.core.balance.pace import HURRIED_STEPS, SpeedChangeDetector
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.diagnosis.straggler import StragglerWatch
from hetero_hvd.core.step_table import StepTables
from hetero_hvd.messages import (
    OWN_PHASES,
    BatchPlan,
    Finding,
    Judged,
    StepsTimed,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkersJoined,
)

Delay = Callable[[int, int, int], dict[str, float]]
"""From worker, step and share to column of `StepTiming`, without its unit, to seconds more."""


STOPS = ("garbage",)
"""Columns that are within the others."""


def no_delay(_worker: int, _step: int, _share: int) -> dict[str, float]:
    """All is well."""
    return {}


class Diagnosis:
    """What the driver says of a job's timings, in the order of its tracker.

    Attributes:
        reports: Of stragglers.
        news: (Seconds, finding): what the terminal shows.
        events: (Seconds, event): what is recorded of it.
        judge: Knows the verdict as it stands.
    """

    def __init__(self) -> None:
        self.judge = Diagnoser()
        self._tables = StepTables()
        self._watch = StragglerWatch()
        self._policy = BalancerState(BalanceConfig())
        self._workers: tuple[WorkerId, ...] = ()
        self.reports: list[StragglerReported] = []
        self.news: list[tuple[float, Finding]] = []
        self.events: list[tuple[float, StragglerReported | Judged]] = []

    def take(self, event: WorkersJoined | StepsTimed, seconds: float) -> list[BatchPlan]:
        """A membership or an exchange; gives back the plans that follow.

        Args:
            event: Of the job; in order.
            seconds: When it was heard of.
        """
        self.judge.observe(event)
        if (table := self._tables.observe(event)) is not None:
            self.judge.observe(table)
        answers = self._policy.handle(event, now_seconds=seconds)
        plans = [answer for answer in answers if isinstance(answer, BatchPlan)]
        if isinstance(event, WorkersJoined):
            self._workers = event.workers
            return plans
        found = self._watch.observe(
            self._workers, event.timings, self._policy.estimators, step=event.step
        )
        for report in found:
            self.judge.observe(report)
        self.reports += found
        news = self.judge.news()
        self.news += [(seconds, finding) for finding in news]
        self.events += [(seconds, report) for report in found]
        if news:
            self.events.append((seconds, Judged(step=event.step, findings=self.judge.findings())))
        return plans


@dataclass
class SimulatedJob:
    """A job of some workers whose computing takes a time in proportion to their share.

    Attributes:
        seconds_per_sample: Of each worker.
        global_batch_size: Samples per step.
        overhead_seconds: Of each step.
        noise_ratio: Of each part of each step, log-normal.
        reduction_seconds: Of each step, where there are several workers.
        staleness_bound: Steps that may be under way: a worker that is slow now and then is waited
            for less.
        seed: Of the noise.
        names: Of the nodes; empty: n0, n1 and so on.
        delay: What goes wrong now.
        diagnosis: What was said; seconds count from the start.
    """

    seconds_per_sample: Sequence[float]
    global_batch_size: int
    overhead_seconds: float = 0.01
    noise_ratio: float = 0.02
    reduction_seconds: float = 0.001
    staleness_bound: int = 0
    seed: int = 0
    names: tuple[str, ...] = ()
    delay: Delay = no_delay
    diagnosis: Diagnosis = field(default_factory=Diagnosis)

    def __post_init__(self) -> None:
        """Let the workers join."""
        self._random = np.random.default_rng(self.seed)
        names = self.names or [f"n{i}" for i in range(len(self.seconds_per_sample))]
        self.workers = tuple(WorkerId(name, 0) for name in names)
        self.step = 0
        self.seconds = 0.0
        self._ready_at = [0.0] * len(self.workers)
        self._applied_at = [0.0]
        self._hurries = [SpeedChangeDetector() for _ in self.workers]
        self._hurry_until = -1
        self._rows: list[list[dict[str, float]]] = []
        self._pending: list[BatchPlan] = []
        joined = WorkersJoined(
            rendezvous_id=1,
            workers=self.workers,
            applied_steps=0,
            global_batch_size=self.global_batch_size,
            capacities=(-1,) * len(self.workers),
            prefetch_steps=0,
        )
        (self.plan,) = self.diagnosis.take(joined, 0.0)

    def run(self, seconds: float) -> list[Finding]:
        """Train on for so long; what was said meanwhile."""
        since, until = len(self.diagnosis.news), self.seconds + seconds
        while self.seconds < until:
            self._one_step()
        return [finding for _, finding in self.diagnosis.news[since:]]

    def verdict(self, *, of_whole_run: bool = False) -> tuple[Finding, ...]:
        """What the page shows now, or the summary at the end."""
        return self.diagnosis.judge.findings(of_whole_run=of_whole_run)

    def _one_step(self) -> None:
        while self._pending and self._pending[0].from_step <= self.step:
            self.plan = self._pending.pop(0)
            self._rows.clear()
        shares = self.plan.local_batch_sizes
        rows = [self._parts(index, share) for index, share in enumerate(shares)]
        stops = [{name: row.pop(name) for name in STOPS if name in row} for row in rows]
        begun = [max(at, self._may_begin()) for at in self._ready_at]
        ready = [at + sum(row.values()) for at, row in zip(begun, rows, strict=True)]
        applied = max(ready) + (self.reduction_seconds if len(ready) > 1 else 0.0)
        self._applied_at.append(applied)
        for index, row in enumerate(rows):
            end = ready[index] if self.staleness_bound else applied
            row["step"] = end - self._ready_at[index]
            row["comm_wait"] = row["step"] - sum(v for k, v in row.items() if k != "step")
            self._ready_at[index] = end
            row.update(stops[index])
        self.seconds = applied
        self._rows.append(rows)
        if self._has_changed(shares, rows):
            self._hurry_until = self.step + HURRIED_STEPS
            if not any(row["evaluation"] for row in rows):
                del self._rows[:-1]
        if self.step % self.plan.exchange_steps == 0 or self.step < self._hurry_until:
            self._exchange(shares)
        self.step += 1

    def _may_begin(self) -> float:
        """A worker is at most so many steps ahead of what is reduced."""
        return self._applied_at[max(0, len(self._applied_at) - 1 - self.staleness_bound)]

    def _parts(self, index: int, share: int) -> dict[str, float]:
        compute = self.overhead_seconds + self.seconds_per_sample[index] * share
        row = {"data_wait": 0.002, "forward": compute / 3, "backward": compute * 2 / 3}
        row |= {"optimizer": 0.003, "other": 0.002, "evaluation": 0.0, "transfer": 0.0}
        row["garbage"] = 0.0
        row = {name: value * self._noise() for name, value in row.items()}
        for name, seconds in self.delay(index, self.step, share).items():
            row[name] = row.get(name, 0.0) + seconds * self._noise()
        return row

    def _noise(self) -> float:
        return float(np.exp(self._random.normal(0.0, self.noise_ratio)))

    def _has_changed(self, shares: Sequence[int], rows: Sequence[dict[str, float]]) -> bool:
        parts = (*OWN_PHASES, "other", "evaluation")
        own = [sum(row[part] for part in parts) for row in rows]
        found = zip(self._hurries, shares, own, strict=True)
        return sum(hurry.observe(share, seconds) for hurry, share, seconds in found) > 0

    def _exchange(self, shares: Sequence[int]) -> None:
        event = StepsTimed(
            rendezvous_id=1,
            step=self.step,
            epoch=0,
            loss=math.nan,
            timings=tuple(
                _row([rows[index] for rows in self._rows], share)
                for index, share in enumerate(shares)
            ),
            exchange_seconds=0.0,
        )
        self._rows.clear()
        self._pending += self.diagnosis.take(event, self.seconds)


def _row(steps: Sequence[dict[str, float]], share: int) -> StepTiming:
    means: dict[str, Any] = {
        f"{name}_seconds": float(np.mean([step[name] for step in steps])) for name in steps[0]
    }
    return StepTiming(num_steps=len(steps), local_batch_size=share, memory_bytes=math.nan, **means)
