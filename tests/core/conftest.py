"""A simulated cluster: seeded noise around true step-time curves, driven through `ClusterState`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pytest

from hetero_hvd.core.balancer import balance
from hetero_hvd.core.cluster import BalanceConfig, ClusterState
from hetero_hvd.core.control import Decision
from hetero_hvd.core.step_time import StepTimeModel
from hetero_hvd.messages import BatchPlan, StepsTimed, StepTiming, WorkerId, WorkersJoined


class Curve(Protocol):
    """The truth about a worker."""

    def step_seconds(self, local_batch_size: int) -> float:
        """True mean busy seconds of a step with that many samples."""


@dataclass(frozen=True)
class Cliff:
    """Like `below`, but `ratio` times slower with more than `edge` samples (memory, say)."""

    below: StepTimeModel
    edge: int
    ratio: float

    def step_seconds(self, local_batch_size: int) -> float:
        """Seconds of a step."""
        seconds = self.below.step_seconds(local_batch_size)
        return seconds * (self.ratio if local_batch_size > self.edge else 1.0)


def affine(speed: float, overhead_seconds: float = 0.0) -> StepTimeModel:
    """A worker with that many samples per second once its overhead is paid."""
    return StepTimeModel(overhead_seconds=overhead_seconds, seconds_per_sample=1 / speed)


def timing(size, compute, *, wait=0.0, step_seconds=0.0, num=1):
    """A row with its busy time split as a worker would."""
    return StepTiming(
        num_steps=num,
        local_batch_size=size,
        memory_bytes=0.0,
        data_wait_seconds=wait,
        transfer_seconds=0.0,
        forward_seconds=compute / 3,
        backward_seconds=compute * 2 / 3,
        comm_wait_seconds=0.0,
        optimizer_seconds=0.0,
        step_seconds=step_seconds or compute + wait,
    )


@dataclass
class Simulation:
    """One run: true curves in, plans in force and their true efficiency out.

    Attributes:
        curves: Mean busy seconds per worker; replace an entry to change a worker's speed.
        noise: Coefficient of variation of the log-normal noise on each worker's step.
        lag_steps: Steps from a plan's `from_step` to the one rank 0 can really stamp.
    """

    curves: list[Curve]
    global_batch_size: int = 512
    noise: float = 0.05
    seed: int = 0
    config: BalanceConfig = field(default_factory=BalanceConfig)
    capacities: tuple[int, ...] | None = None
    prefetch_steps: int = 0
    lag_steps: int = 1

    def __post_init__(self):
        """Join at step 0."""
        self.random = np.random.default_rng(self.seed)
        self.workers = tuple(WorkerId(f"node{i}", 0) for i in range(len(self.curves)))
        self.state = ClusterState(self.config)
        self.step, self.clock, self.rendezvous_id = 0, 0.0, 0
        self.exchanges = 0
        self.decisions: list[Decision] = []
        self.sizes_at: list[tuple[int, ...]] = []
        self.efficiency_at: list[float] = []
        self.join()

    def join(self):
        """A rendezvous of all workers."""
        self.rendezvous_id += 1
        event = WorkersJoined(
            rendezvous_id=self.rendezvous_id,
            workers=self.workers,
            applied_steps=self.step,
            global_batch_size=self.global_batch_size,
            capacities=self.capacities or (-1,) * len(self.workers),
            prefetch_steps=self.prefetch_steps,
        )
        (self.plan,) = self.state.handle(event, now_seconds=self.clock)
        assert isinstance(self.plan, BatchPlan)
        self.pending: list[tuple[int, BatchPlan]] = []
        self.rows: list[list[tuple[int, float]]] = []

    def best_seconds(self) -> float:
        """Step time of the best plan for the true curves, which must be affine."""
        models = dict(zip(self.workers, self.curves, strict=True))
        sizes = balance(
            models, global_batch_size=self.global_batch_size, capacities=self.capacities
        )
        return max(models[w].step_seconds(n) for w, n in zip(self.workers, sizes, strict=True))

    def slowest_seconds(self, sizes) -> float:
        """True step time of a plan."""
        pairs = zip(self.curves, sizes, strict=True)
        return max(curve.step_seconds(n) for curve, n in pairs if n)

    def run(self, num_steps: int, *, best_seconds: float | None = None) -> None:
        """Train on; each step's efficiency is the best step time / that of the plan in force."""
        best = self.best_seconds() if best_seconds is None else best_seconds
        for _ in range(num_steps):
            while self.pending and self.pending[0][0] <= self.step:
                self.plan = self.pending.pop(0)[1]
                self.rows.clear()
            sizes = self.plan.local_batch_sizes
            assert sum(sizes) == self.global_batch_size
            factors = np.exp(self.random.normal(0.0, self.noise, len(sizes)))
            busy = [
                curve.step_seconds(n) * f if n else 0.0
                for curve, n, f in zip(self.curves, sizes, factors, strict=True)
            ]
            self.rows.append(list(zip(sizes, busy, strict=True)))
            self.sizes_at.append(sizes)
            self.efficiency_at.append(best / self.slowest_seconds(sizes))
            self.clock += max(busy)
            if self.step % self.plan.exchange_steps == 0:
                self._exchange()
            self.step += 1

    def _exchange(self):
        self.exchanges += 1
        num = len(self.rows)
        step_seconds = np.mean([max(b for _, b in row) for row in self.rows])
        timings = tuple(
            timing(
                column[0][0],
                float(np.mean([b for _, b in column])),
                step_seconds=step_seconds,
                num=num,
            )
            for column in zip(*self.rows, strict=True)
        )
        self.rows.clear()
        event = StepsTimed(
            rendezvous_id=self.rendezvous_id,
            step=self.step,
            epoch=0,
            loss=math.nan,
            timings=timings,
            exchange_seconds=0.0,
        )
        for answer in self.state.handle(event, now_seconds=self.clock):
            if isinstance(answer, Decision):
                self.decisions.append(answer)
            else:
                assert answer.from_step >= self.step + 3 + self.prefetch_steps
                self.pending.append((answer.from_step + self.lag_steps, answer))

    @property
    def num_moves(self) -> int:
        """Plans with other shares so far."""
        return sum(d.action in {"move", "roll back"} for d in self.decisions)

    def steps_until(self, efficiency: float, *, since: int = 0) -> int:
        """Steps after `since` until the plan in force is that good."""
        good = (i for i, e in enumerate(self.efficiency_at[since:]) if e >= efficiency)
        return next(good, 10**9)


@pytest.fixture(name="simulation")
def simulation_class() -> type[Simulation]:
    """The simulation's class."""
    return Simulation


@pytest.fixture(name="affine")
def affine_function():
    """Make a worker of that speed."""
    return affine


@pytest.fixture(name="cliff")
def cliff_class():
    """A worker with a cliff."""
    return Cliff


@pytest.fixture(name="timing")
def timing_function():
    """Make a row."""
    return timing
