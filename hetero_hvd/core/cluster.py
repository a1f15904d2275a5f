"""What is known about the cluster, and the plan that follows from each thing heard.

`ClusterState.handle` is the only way to change the state. It takes one event and the time, returns
the plans and decisions that follow, and touches nothing else: no socket, no clock, no Horovod.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from hetero_hvd.core.control import Decision, MoveRule, Trial
from hetero_hvd.core.known import KnownWorker, own_seconds
from hetero_hvd.core.pace import ExchangePace
from hetero_hvd.core.planner import Spares, best_plan, even_plan, models_or_guesses
from hetero_hvd.core.step_time import StepTimeModel
from hetero_hvd.errors import ConfigError, InvariantError
from hetero_hvd.messages import BatchPlan, StepsTimed, WorkerId, WorkersJoined

PLAN_DELAY_STEPS = 3
"""The table of step k is read after k+1; the plan rides on an exchange begun later, read after."""

LOST_PLAN_ROWS = 20
"""Tables that contradict the plan in force before it is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    """How the global batch is divided."""

    balance: bool = True
    """Follow the measured speeds; else the same share for all."""

    baseline_steps: int = 0
    """First steps of the run with the same share for all, to compare with; >= 0."""

    min_gain_ratio: float = 0.02
    """Predicted part of the step time that a new plan must save, 0 to 0.5."""

    exchange_seconds: float = 1.0
    """Time between two exchanges of timings once settled, > 0."""

    grain: int = 1
    """Samples that are never split between workers, >= 1."""

    relative_speeds: Mapping[str, float] = field(default_factory=dict)
    """Hints per node for the first plan, > 0; a node without one counts as 1."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: With all that is wrong.
        """
        checks = [
            ("baseline_steps", self.baseline_steps, self.baseline_steps >= 0, ">= 0"),
            ("min_gain_ratio", self.min_gain_ratio, 0 <= self.min_gain_ratio <= 0.5, "0 to 0.5"),
            ("exchange_seconds", self.exchange_seconds, self.exchange_seconds > 0, "> 0"),
            ("grain", self.grain, self.grain >= 1, ">= 1"),
        ]
        checks += [
            (f"relative_speeds[{node}]", speed, 0 < speed < math.inf, "> 0")
            for node, speed in self.relative_speeds.items()
        ]
        wrong = [
            f"{name}={found}: must be {allowed}" for name, found, ok, allowed in checks if not ok
        ]
        if wrong:
            raise ConfigError(wrong)


class ClusterState:
    """All that the balancer knows; change it through `handle` only.

    What was learnt about a worker is kept over all rendezvous, so one that returns starts balanced.
    """

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._all_known: dict[WorkerId, KnownWorker] = {}
        self._known: dict[WorkerId, KnownWorker] = {}
        self._joined: WorkersJoined | None = None
        self._plan: BatchPlan | None = None
        self._last_step = -1
        self._rule = MoveRule(config.min_gain_ratio)
        self._pace = ExchangePace(config.exchange_seconds)
        self._spares = Spares()
        self._trial: Trial | None = None
        self._slowest: deque[float] = deque(maxlen=5)
        self._num_contradictions = 0

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan; None before the first rendezvous."""
        return self._plan

    @property
    def models(self) -> dict[WorkerId, StepTimeModel]:
        """Step-time model of each member that was measured, in rank order."""
        return {w: k.estimator.model for w, k in self._known.items() if k.estimator.is_ready}

    @property
    def ideal_samples_per_second(self) -> float:
        """Sum of what the members do while busy, at their last measured shares."""
        rows = [k.last_timing for k in self._known.values() if k.last_timing]
        return sum(row.local_batch_size / row.busy_seconds for row in rows)

    @property
    def imbalance_ratio(self) -> float:
        """(largest - smallest) / mean of the members' last busy times; NaN before the first."""
        rows = [k.last_timing for k in self._known.values() if k.last_timing]
        busy = [row.busy_seconds for row in rows]
        return (max(busy) - min(busy)) * len(busy) / sum(busy) if busy else math.nan

    def handle(
        self, event: WorkersJoined | StepsTimed, *, now_seconds: float
    ) -> list[BatchPlan | Decision]:
        """Take one event in; give back what follows, in order.

        Args:
            event: A rendezvous (one plan follows, always) or a table of timings (one decision
                follows and perhaps a plan; nothing if it is of another rendezvous, or repeated,
                or of the first step, which carries the costs of starting).
            now_seconds: The caller's clock; any origin, never falling.

        Raises:
            InfeasiblePlanError: The members' capacities do not hold the global batch.
        """
        if isinstance(event, WorkersJoined):
            return [self._join(event, now_seconds)]
        joined = self._joined
        if joined is None or event.rendezvous_id != joined.rendezvous_id:
            return []
        if len(event.timings) != len(joined.workers):
            raise InvariantError(
                f"{len(event.timings)} timings of {len(joined.workers)} workers in rendezvous "
                f"{joined.rendezvous_id}"
            )
        if event.step <= max(self._last_step, joined.applied_steps):
            return []
        self._last_step = event.step
        return self._timed(event, now_seconds)

    def _join(self, event: WorkersJoined, now_seconds: float) -> BatchPlan:
        known = {w: self._all_known.get(w) or KnownWorker() for w in event.workers}
        if self._may_balance(event.applied_steps):
            sizes = self._best(event, known, now_seconds)
            measured = sum(record.estimator.is_ready for record in known.values())
            reason = f"start: {measured} of {len(known)} workers were measured before"
        else:
            sizes, reason = self._even(event), "start: the same share for all"
        self._all_known.update(known)
        self._joined, self._known, self._last_step = event, known, -1
        self._spares = Spares()
        self._unsettle()
        self._plan = BatchPlan(
            rendezvous_id=event.rendezvous_id,
            plan_id=1,
            from_step=event.applied_steps,
            exchange_steps=1,
            workers=event.workers,
            local_batch_sizes=sizes,
            reason=reason,
        )
        return self._plan

    def _timed(self, event: StepsTimed, now_seconds: float) -> list[BatchPlan | Decision]:
        joined, plan = self._members()
        self._pace.observe(event.timings)
        changed = self._learn(event)
        if changed:
            self._unsettle()
        self._compare(event, plan)
        decision = self._decide(event, changed, now_seconds)
        sizes = plan.local_batch_sizes
        if decision.action in {"move", "roll back", "try again"}:
            sizes = decision.proposed
            self._follow(decision, plan)
        exchange_steps = self._exchange_steps(event, plan)
        reason = decision.reason
        if sizes == plan.local_batch_sizes:
            reason = f"exchange timings every {exchange_steps} steps"
            if self._num_contradictions >= LOST_PLAN_ROWS:
                reason = "sent again: it is not in force"
            elif exchange_steps == plan.exchange_steps:
                return [decision]
        self._num_contradictions = 0
        self._plan = BatchPlan(
            rendezvous_id=plan.rendezvous_id,
            plan_id=plan.plan_id + 1,
            from_step=event.step + PLAN_DELAY_STEPS + joined.prefetch_steps,
            exchange_steps=exchange_steps,
            workers=plan.workers,
            local_batch_sizes=sizes,
            reason=reason,
        )
        return [decision, self._plan]

    def _learn(self, event: StepsTimed) -> dict[WorkerId, float]:
        """Update what is known about each member; who has changed its speed, by what ratio."""
        changed = {}
        for (worker, record), row in zip(self._known.items(), event.timings, strict=True):
            ratio = record.observe(row)
            if self._trial and self._trial.is_suspect(worker):
                continue
            if ratio is not None:
                record.accept_change(ratio)
                changed[worker] = ratio
            if math.isfinite(own_seconds(row)):
                record.prove(row.local_batch_size)
        return changed

    def _compare(self, event: StepsTimed, plan: BatchPlan) -> None:
        """Note how the plan in force does, and whether it is in force at all."""
        measured = tuple(row.local_batch_size for row in event.timings)
        slowest = max(map(own_seconds, event.timings))
        if measured == plan.local_batch_sizes and math.isfinite(slowest):
            self._slowest.append(slowest)
        if event.step >= plan.from_step:
            contradicted = measured != plan.local_batch_sizes
            self._num_contradictions = self._num_contradictions + 1 if contradicted else 0

    def _decide(
        self, event: StepsTimed, changed: Mapping[WorkerId, float], now_seconds: float
    ) -> Decision:
        joined, plan = self._members()
        current = plan.local_batch_sizes
        self._spares.observe(
            dict(zip(joined.workers, current, strict=True)), now_seconds=now_seconds
        )
        if not self._may_balance(event.step + PLAN_DELAY_STEPS + joined.prefetch_steps):
            reason = "baseline" if self._config.balance else "balancing is off"
            return Decision(step=event.step, action="keep", reason=reason)
        rollback = self._judge_trial(event, now_seconds)
        if rollback is not None:
            return rollback
        unmeasured = [
            str(worker)
            for (worker, record), size in zip(self._known.items(), current, strict=True)
            if size and not record.estimator.is_ready
        ]
        if unmeasured:
            reason = f"not measured yet: {', '.join(unmeasured[:5])}"
            return Decision(step=event.step, action="keep", reason=reason)
        proposed = self._best(joined, self._known, now_seconds)
        retried = [w for w, size in zip(joined.workers, current, strict=True) if not size]
        retried = [worker for worker in retried if worker in self._spares.retried]
        if retried:
            reason = f"measure again: {', '.join(map(str, retried[:5]))}"
            return Decision(step=event.step, action="try again", reason=reason, proposed=proposed)
        return self._rule.judge(
            list(self._models(joined, self._known).values()),
            [record.estimator for record in self._known.values()],
            current=current,
            proposed=proposed,
            step=event.step,
            changed=changed,
        )

    def _judge_trial(self, event: StepsTimed, now_seconds: float) -> Decision | None:
        """Accept the plan on trial when it has been measured, or say that it was a mistake."""
        trial = self._trial
        if trial is None:
            return None
        trial.observe(event.timings)
        if not trial.is_over:
            return None
        self._trial = None
        workers = tuple(self._known)
        sigma = max(record.estimator.sigma_ratio for record in self._known.values())
        tolerance = max(self._config.min_gain_ratio, 1.5 * sigma)
        overloaded = trial.overloaded(workers, tolerance_ratio=tolerance)
        for rank, estimator in overloaded.items():
            self._known[workers[rank]].fail(trial.sizes[rank], estimator, now_seconds=now_seconds)
        if not overloaded:
            return None
        names = ", ".join(f"{workers[rank]} at {trial.sizes[rank]}" for rank in overloaded)
        return Decision(
            step=event.step,
            action="roll back",
            reason=f"slower than before and than predicted: {names}",
            proposed=trial.before,
        )

    def _follow(self, decision: Decision, plan: BatchPlan) -> None:
        """Prepare for a new plan: a move is on trial against the plan before it."""
        if decision.action == "roll back":
            self._trial = None
        elif self._trial is not None:
            self._trial.extend(self._known, decision.proposed)
        else:
            measured = median(self._slowest) if self._slowest else decision.current_seconds
            self._trial = Trial(
                self._known,
                before=plan.local_batch_sizes,
                before_seconds=measured,
                sizes=decision.proposed,
            )
        self._rule.forget()
        self._pace.disturb()
        self._slowest.clear()

    def _unsettle(self) -> None:
        """The workers have changed: what was measured of the plan in force is void."""
        self._trial = None
        self._rule.forget()
        self._pace.disturb()
        self._slowest.clear()
        self._num_contradictions = 0

    def _may_balance(self, from_step: int) -> bool:
        return self._config.balance and from_step >= self._config.baseline_steps

    def _exchange_steps(self, event: StepsTimed, plan: BatchPlan) -> int:
        if self._config.balance and event.step < self._config.baseline_steps:
            return 1  # so that the baseline ends on time
        return self._pace.exchange_steps(plan.exchange_steps)

    def _models(
        self, joined: WorkersJoined, known: Mapping[WorkerId, KnownWorker]
    ) -> dict[WorkerId, StepTimeModel]:
        return models_or_guesses(
            known,
            relative_speeds=self._config.relative_speeds,
            typical_share=joined.global_batch_size / len(known),
        )

    def _best(
        self, joined: WorkersJoined, known: Mapping[WorkerId, KnownWorker], now_seconds: float
    ) -> tuple[int, ...]:
        return best_plan(
            self._models(joined, known),
            global_batch_size=joined.global_batch_size,
            capacities=joined.capacities,
            trusted=[record.max_share(now_seconds=now_seconds) for record in known.values()],
            grain=self._config.grain,
            retried=self._spares.retried,
        )

    def _even(self, joined: WorkersJoined) -> tuple[int, ...]:
        return even_plan(
            joined.workers,
            global_batch_size=joined.global_batch_size,
            capacities=joined.capacities,
            grain=self._config.grain,
        )

    def _members(self) -> tuple[WorkersJoined, BatchPlan]:
        if self._joined is None or self._plan is None:
            raise InvariantError("a decision before the first rendezvous")
        return self._joined, self._plan
