"""A cluster that exists as numbers: true curves, noise and events, driven through any policy.

The plan that follows from a table is in force two steps later where a worker had noticed a change,
else three, as in a real run; exchanges come as often as the plan in force says, and after each of
the first steps that follow a change or a new plan. Randomness comes from the caller's generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hetero_hvd.core.balance.balancer import balance
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.pace import HURRIED_STEPS, SpeedChangeDetector
from hetero_hvd.core.balance.planner import first_plan
from hetero_hvd.core.balance.policies.registry import Policy
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.simulation.scenario import Blocks, Scenario, TrueCurve
from hetero_hvd.messages import (
    BatchPlan,
    Calibrated,
    PassTiming,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
)


class Simulation:
    """One run of a scenario under a policy.

    Attributes:
        scenario: May be replaced between calls of `run`.
        policy: What decides; None for an oracle, which has the best plan in force at each step.
        step: Steps done.
        clock: Seconds passed in the simulated cluster.
        plan: In force.
        decisions: All so far.
        sizes_at: Local batch sizes in force at each step, members only.
        efficiency_at: True step time of the best plan / that of the plan in force, at each step.
        seconds_at: Duration of each step, with noise and reduction.
        true_seconds_at: Duration of each step without noise, with reduction.
        best_seconds_at: Duration of each step under the best plan, without noise, with reduction.
        num_exchanges: So many tables were handed to the policy.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy | None, random: np.random.Generator
    ) -> None:
        self.scenario = scenario
        self.policy = policy
        self.step = 0
        self.clock = 0.0
        self.num_exchanges = 0
        self.decisions: list[Decision] = []
        self.sizes_at: list[tuple[int, ...]] = []
        self.efficiency_at: list[float] = []
        self.seconds_at: list[float] = []
        self.true_seconds_at: list[float] = []
        self.best_seconds_at: list[float] = []
        self._random = random
        self._rendezvous_id = 0
        self._members: tuple[int, ...] = ()
        self.calibration_seconds = 0.0
        self._rows: list[tuple[float, ...]] = []
        self._best: tuple[object, tuple[int, ...], float] = (None, (), math.nan)
        self._moves_at: list[int] = []
        self._hurries = [SpeedChangeDetector() for _ in scenario.curves]
        self._hurry_until = self._news_at = -1
        self.join(self._present(scenario.time_ratios(0)))

    @property
    def num_moves(self) -> int:
        """Plans with other shares so far."""
        return len(self._moves_at)

    def steps_until(self, efficiency: float, *, since: int = 0) -> int:
        """Steps after `since` until the plan in force is that good; 10**9 if it never is."""
        good = (i for i, e in enumerate(self.efficiency_at[since:]) if e >= efficiency)
        return next(good, 10**9)

    def join(self, members: Sequence[int]) -> None:
        """A rendezvous of these workers, in this rank order."""
        self._members = tuple(members)
        self._rendezvous_id += 1
        capacities = self.scenario.capacities or (-1,) * len(self.scenario.curves)
        event = WorkersJoined(
            rendezvous_id=self._rendezvous_id,
            workers=tuple(WorkerId(f"node{i}", 0) for i in self._members),
            applied_steps=self.step,
            global_batch_size=self.scenario.global_batch_size,
            capacities=tuple(capacities[i] for i in self._members),
            prefetch_steps=self.scenario.prefetch_steps,
            micro_batch_sizes=tuple(
                getattr(self.scenario.curves[i], "micro_batch_size", 0) for i in self._members
            ),
            can_calibrate=self.scenario.can_calibrate,
        )
        self._pending: list[tuple[int, BatchPlan]] = []
        self._rows = []
        self.plan = first_plan(event, self._best_plan()[0], reason="oracle", plan_id=0)
        for answer in self.policy.handle(event, now_seconds=self.clock) if self.policy else ():
            if isinstance(answer, BatchPlan):
                self.plan = answer
        while self.policy and self.plan.calibration_ratio:
            self._calibrate(self.policy)

    def _calibrate(self, policy: Policy) -> None:
        """Each worker computes a part of its share, which is thrown away; the slowest counts."""
        ratios = self.scenario.time_ratios(self.step)
        sizes = [
            max(1, round(size * self.plan.calibration_ratio))
            for size in self.plan.local_batch_sizes
        ]
        pairs = zip(self._members, sizes, strict=True)
        alone = [self.scenario.curves[i].step_seconds(n) * ratios[i] for i, n in pairs]
        busy = np.array(self.scenario.coupled_seconds(alone)) * self._noise(len(sizes))
        self.calibration_seconds += float(busy.max())
        self.clock += float(busy.max())
        event = Calibrated(
            rendezvous_id=self._rendezvous_id,
            plan_id=self.plan.plan_id,
            measured=tuple((PassTiming(n, t),) for n, t in zip(sizes, busy.tolist(), strict=True)),
        )
        (self.plan,) = (
            answer
            for answer in policy.handle(event, now_seconds=self.clock)
            if isinstance(answer, BatchPlan)
        )

    def run(self, num_steps: int, *, best_seconds: float | None = None) -> None:
        """Train on for so many steps.

        Args:
            num_steps: > 0.
            best_seconds: Step time of the best plan, for curves that are not affine.
        """
        for _ in range(num_steps):
            self._one_step(best_seconds)

    def best_seconds(self) -> float:
        """Busy time of the slowest worker under the best plan now; the curves must be affine."""
        return self._best_plan()[1]

    def _best_plan(self) -> tuple[tuple[int, ...], float]:
        ratios = self.scenario.time_ratios(self.step)
        key = (ratios, self._members, self.scenario.curves)
        if self._best[0] != key:
            models = {
                WorkerId(str(i), 0): _affine(self.scenario.curves[i], ratios[i])
                for i in self._members
            }
            caps = [self.scenario.capacities[i] for i in self._members if self.scenario.capacities]
            total = self.scenario.global_batch_size
            sizes = balance(models, global_batch_size=total, capacities=caps or None)
            pairs = zip(models.values(), sizes, strict=True)
            alone = [model.step_seconds(size) for model, size in pairs]
            self._best = (key, sizes, max(self.scenario.coupled_seconds(alone)))
        return self._best[1], self._best[2]

    def _one_step(self, best_seconds: float | None) -> None:
        ratios = self.scenario.time_ratios(self.step)
        present = self._present(ratios)
        if set(present) != set(self._members):
            self.join(present)
        while self._pending and self._pending[0][0] <= self.step:
            self.plan = self._pending.pop(0)[1]
            self._rows.clear()
        sizes = self.plan.local_batch_sizes if self.policy else self._best_plan()[0]
        alone = [
            self.scenario.curves[i].step_seconds(n) * ratios[i] if n else 0.0
            for i, n in zip(self._members, sizes, strict=True)
        ]
        true = np.array(self.scenario.coupled_seconds(alone))
        busy = true * self._noise(len(sizes))
        best = self.best_seconds() if best_seconds is None else best_seconds
        links = self.scenario.link_seconds
        link = max(links[i] for i in self._members) if links else 0.0
        self.sizes_at.append(sizes)
        self.efficiency_at.append(best / float(true.max()))
        self.seconds_at.append(float(busy.max()) + link)
        self.true_seconds_at.append(float(true.max()) + link)
        self.best_seconds_at.append(best + link)
        self.clock += self.seconds_at[-1]
        self._rows.append(tuple(busy.tolist()))
        has_changed = self._look_for_changes(sizes, self._rows[-1])
        if has_changed:
            del self._rows[:-1]
        if has_changed or self.step == self._news_at:
            self._hurry_until = self.step + HURRIED_STEPS
        is_due = self.step % self.plan.exchange_steps == 0 or self.step < self._hurry_until
        if self.policy and is_due:
            self._exchange(self.policy, sizes)
        self.step += 1

    def _look_for_changes(self, sizes: Sequence[int], busy: Sequence[float]) -> bool:
        """Whether a worker notices that it has changed, as real ones do."""
        rows = zip(self._members, sizes, busy, strict=True)
        return sum(self._hurries[i].observe(n, seconds) for i, n, seconds in rows) > 0

    def _noise(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        scenario = self.scenario
        factors = scenario.jitter.factors(self._random, count)
        if scenario.recorded:
            row = scenario.recorded[self.step % len(scenario.recorded)]
            factors = factors * np.array([row[i] for i in self._members])
        return factors

    def _exchange(self, policy: Policy, sizes: Sequence[int]) -> None:
        self.num_exchanges += 1
        num, busy = len(self._rows), np.mean(self._rows, axis=0).tolist()
        step_seconds = float(np.mean(self.seconds_at[-num:]))
        timings = tuple(
            row_of(n, seconds, num_steps=num, step_seconds=step_seconds)
            for n, seconds in zip(sizes, busy, strict=True)
        )
        self._rows.clear()
        event = StepsTimed(
            rendezvous_id=self._rendezvous_id,
            step=self.step,
            epoch=0,
            loss=math.nan,
            timings=timings,
            exchange_seconds=0.0,
        )
        last = self._pending[-1][1] if self._pending else self.plan
        for answer in policy.handle(event, now_seconds=self.clock):
            if isinstance(answer, Decision):
                self.decisions.append(answer)
                continue
            if answer.local_batch_sizes != last.local_batch_sizes:
                self._moves_at.append(self.step)
            # Rank 0 has the answer in the step after it was read, and all of them by its end.
            self._news_at = self.step + (1 if self.step < self._hurry_until else 2)
            from_step = self._news_at + 1 + self.scenario.prefetch_steps
            self._pending.append((max(answer.from_step, from_step), answer))

    @staticmethod
    def _present(ratios: Sequence[float]) -> tuple[int, ...]:
        return tuple(i for i, ratio in enumerate(ratios) if math.isfinite(ratio))


def row_of(
    local_batch_size: int,
    compute_seconds: float,
    *,
    num_steps: int = 1,
    step_seconds: float = 0.0,
    data_wait_seconds: float = 0.0,
) -> StepTiming:
    """A row with its busy time split as a worker would."""
    busy = compute_seconds + data_wait_seconds
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=local_batch_size,
        memory_bytes=0.0,
        data_wait_seconds=data_wait_seconds,
        transfer_seconds=0.0,
        forward_seconds=compute_seconds / 3,
        backward_seconds=compute_seconds * 2 / 3,
        comm_wait_seconds=max(0.0, step_seconds - busy),
        optimizer_seconds=0.0,
        step_seconds=step_seconds or busy,
        other_seconds=0.0,
    )


def _affine(curve: TrueCurve, ratio: float) -> StepTimeModel:
    """The straight line through a curve, or its stairs; exact where it is one of these."""
    if isinstance(curve, Blocks):
        return StepTimeModel(
            overhead_seconds=curve.block_seconds * ratio,
            seconds_per_sample=1e-15,
            micro_batch_size=curve.block_size,
        )
    if isinstance(curve, StepTimeModel):
        return replace(
            curve,
            overhead_seconds=curve.overhead_seconds * ratio,
            seconds_per_sample=curve.seconds_per_sample * ratio,
        )
    slope = (curve.step_seconds(1000) - curve.step_seconds(500)) / 500
    overhead = max(0.0, curve.step_seconds(500) - 500 * slope)
    return StepTimeModel(overhead_seconds=overhead * ratio, seconds_per_sample=slope * ratio)
