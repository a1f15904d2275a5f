"""What is known about the cluster, and the plan that follows from each thing heard.

`BalancerState.handle` alone changes the state, and touches no socket, no clock, no Horovod.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hetero_hvd.core.balance import calibration
from hetero_hvd.core.balance.balancer import slowest_seconds
from hetero_hvd.core.balance.hysteresis import Decision, ReplanPolicy
from hetero_hvd.core.balance.known import SpeedProfile, WorkerModel, own_seconds
from hetero_hvd.core.balance.move_record import MoveRecord
from hetero_hvd.core.balance.pace import ExchangeInterval
from hetero_hvd.core.balance.planner import (
    PLAN_DELAY_STEPS,
    best_plan,
    even_plan,
    first_plan,
    models_or_guesses,
    next_plan,
)
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.core.balance.spares import IdleWorkers
from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.core.balance.swings import Swings
from hetero_hvd.core.balance.trial import PlanTrial
from hetero_hvd.errors import InvariantError
from hetero_hvd.messages import BatchPlan, Calibrated, StepsTimed, WorkerId, WorkersJoined

__all__ = ["BalanceConfig", "BalancerState"]

CALM_GAIN_RATIO = 0.05
"""What a plan must save over the last swings to be worth a move while speeds swing."""

ROWS_TO_TELL = 5
"""Tables under a plan before a change is put down to the worker rather than to its new share."""

LOST_PLAN_ROWS = 20
"""Tables that contradict the plan in force before it is sent again."""


class BalancerState:
    """All that the balancer knows; change it through `handle` only.

    What was learnt about a worker is kept over all rendezvous, so one that returns starts balanced.

    Args:
        config: What the user says.
        remembered: What earlier jobs learnt about the same workers; looked at when one joins.
    """

    def __init__(
        self, config: BalanceConfig, remembered: Mapping[WorkerId, SpeedProfile] | None = None
    ) -> None:
        self._config = config
        self._remembered = {} if remembered is None else remembered
        self._all_known: dict[WorkerId, WorkerModel] = {}
        self._known: dict[WorkerId, WorkerModel] = {}
        self._joined: WorkersJoined | None = None
        self._plan: BatchPlan | None = None
        self._last_step = -1
        self._rule = ReplanPolicy(config.min_gain_ratio)
        self._pace = ExchangeInterval(config.exchange_seconds)
        self._spares = IdleWorkers()
        self._moves = MoveRecord()
        self._swings = Swings()
        self._trial: PlanTrial | None = None
        self._num_contradictions = 0
        self._measured: tuple[int, ...] = ()
        self._num_rows = 0
        self._needs_all = False

    def need_all(self) -> None:
        """From now on every worker gets a part of each step, at whatever cost."""
        self._needs_all = True

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan; None before the first rendezvous."""
        return self._plan

    @property
    def models(self) -> dict[WorkerId, StepTimeModel]:
        """Of each member that was measured, in rank order."""
        return {worker: estimator.model for worker, estimator in self.estimators.items()}

    @property
    def estimators(self) -> dict[WorkerId, StepTimeEstimator]:
        """What is known of each member that was measured; to be read only."""
        return {w: k.estimator for w, k in self._known.items() if k.estimator.is_ready}

    @property
    def curves(self) -> dict[WorkerId, SpeedProfile]:
        """What to remember of all workers that were ever measured in this job."""
        curves = {worker: record.curve for worker, record in self._all_known.items()}
        return {worker: curve for worker, curve in curves.items() if curve}

    def handle(
        self, event: WorkersJoined | Calibrated | StepsTimed, *, now_seconds: float
    ) -> list[BatchPlan | Decision]:
        """Take one event in; give back what follows, in order.

        Args:
            event: A rendezvous (one plan follows), what was measured before its first step (one
                plan follows), or a table of timings (one decision follows and perhaps a plan). What
                belongs to another rendezvous, or to the first step of one, is ignored.
            now_seconds: The caller's clock; any origin, never falling.

        Raises:
            InfeasiblePlanError: The capacities do not hold the global batch.
        """
        if isinstance(event, WorkersJoined):
            return [self._join(event, now_seconds)]
        joined = self._joined
        if joined is None or event.rendezvous_id != joined.rendezvous_id:
            return []
        if isinstance(event, Calibrated):
            return self._calibrated(event, now_seconds)
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
        sizes_of = event.micro_batch_sizes or (0,) * len(event.workers)
        known = {w: self._known_of(w, m) for w, m in zip(event.workers, sizes_of, strict=True)}
        may_balance = self._may_balance(event, event.applied_steps)
        if may_balance:
            _, sizes = self._best(event, known, now_seconds)
            reason = calibration.known_in_words(self._config, event, known)
        else:
            sizes = self._even(event)
            reason = f"start: {_why_even(event)}"
            if self._joined is None:  # it is said once
                reason += calibration.unused_in_words(self._config, event)
        for worker, record in known.items():
            record.reset()
            self._all_known[worker] = record
        self._joined = event
        self._known = known
        self._last_step = -1
        self._spares = IdleWorkers()
        self._moves = MoveRecord()
        self._swings = Swings()
        self._unsettle()
        ratio = calibration.first_ratio(self._config, event, known) if may_balance else 0.0
        self._plan = first_plan(event, sizes, reason=reason, calibration_ratio=ratio)
        return self._plan

    def _calibrated(self, event: Calibrated, now_seconds: float) -> list[BatchPlan | Decision]:
        """The plan that follows from what the members have measured before its first step."""
        joined, plan = self._members()
        if event.plan_id != plan.plan_id or not plan.calibration_ratio:
            return []
        calibration.learn(self._known, event)
        models, sizes = self._best(joined, self._known, now_seconds)
        self._plan = first_plan(
            joined,
            calibration.believed(models, sizes, instead=self._even(joined)),
            reason=calibration.in_words(self._known),
            plan_id=plan.plan_id + 1,
            calibration_ratio=calibration.next_ratio(plan, self._known, models, sizes),
        )
        return [self._plan]

    def _known_of(self, worker: WorkerId, micro_batch_size: int) -> WorkerModel:
        """What this job knows of a worker, else what was remembered of it, else nothing."""
        record = self._all_known.get(worker)
        if record is not None:
            record.split(micro_batch_size)
            return record
        record = WorkerModel(micro_batch_size)
        if worker in self._remembered:
            record.recall(self._remembered[worker])
        return record

    def _timed(self, event: StepsTimed, now_seconds: float) -> list[BatchPlan | Decision]:
        joined, plan = self._members()
        self._pace.observe(event.timings)
        changed = self._learn(event)
        if changed:
            self._unsettle()
        self._record(event, changed)
        self._compare(event, joined, plan)
        decision = replace(self._decide(event, now_seconds), changed=changed)
        sizes = plan.local_batch_sizes
        if joined.shares_fixed:  # it has followed none; the last batch of an epoch may be smaller
            measured = (row.local_batch_size for row in event.timings)
            sizes = tuple(map(max, sizes, measured))
        elif decision.action in {"move", "roll back", "try again"}:
            sizes = decision.proposed
            self._follow(decision)
        exchange_steps = self._exchange_steps(event, plan)
        reason = decision.reason
        if sizes == plan.local_batch_sizes:
            reason = f"as they were; workers tell their speeds every {exchange_steps} steps"
            if self._num_contradictions >= LOST_PLAN_ROWS:
                reason = "sent again: it is not in force"
            elif exchange_steps == plan.exchange_steps:
                return [decision]
        self._num_contradictions = 0
        self._plan = next_plan(
            plan, joined, sizes, step=event.step, exchange_steps=exchange_steps, reason=reason
        )
        return [decision, self._plan]

    def _learn(self, event: StepsTimed) -> dict[WorkerId, float]:
        """Update what is known about each member; who has changed its speed, by what ratio."""
        changed = {}
        for (worker, record), row in zip(self._known.items(), event.timings, strict=True):
            if row.micro_batch_size not in (-1, record.micro_batch_size):
                record.split(row.micro_batch_size)
            ratio = record.observe(row)
            if self._trial and self._trial.is_suspect(worker):
                continue
            if ratio is not None:
                record.accept_change(ratio)
                changed[worker] = ratio
            if math.isfinite(own_seconds(row)):
                record.accept(row.local_batch_size)
        return changed

    def _record(self, event: StepsTimed, changed: Mapping[WorkerId, float]) -> None:
        """Keep what was measured, to hold later decisions against it."""
        measured = tuple(row.local_batch_size for row in event.timings)
        self._num_rows = self._num_rows + 1 if measured == self._measured else 1
        self._measured = measured
        if changed:
            self._swings.overtaken(event.step)
        if changed and self._num_rows >= ROWS_TO_TELL:
            self._moves.forget_seconds()
            for worker, ratio in changed.items():
                self._swings.changed(worker, ratio, event.step)
        busy = [own_seconds(row) for row in event.timings]
        slowest = math.nan if any(map(math.isnan, busy)) else max(busy)
        if sum(measured) == sum(self._members()[1].local_batch_sizes):
            self._moves.observe(measured, slowest, event.step)
        self._swings.observe(event.timings)

    def _compare(self, event: StepsTimed, joined: WorkersJoined, plan: BatchPlan) -> None:
        """Note whether the newest plan is in force."""
        measured = tuple(row.local_batch_size for row in event.timings)
        if event.step >= plan.from_step:
            contradicted = joined.follows_plan and measured != plan.local_batch_sizes
            self._num_contradictions = self._num_contradictions + 1 if contradicted else 0

    def _decide(self, event: StepsTimed, now_seconds: float) -> Decision:
        joined, plan = self._members()
        step, current = event.step, plan.local_batch_sizes
        measured = tuple(row.local_batch_size for row in event.timings)
        unknown = {worker for worker, record in self._known.items() if record.last_timing is None}
        self._spares.observe(
            joined.workers, current, measured, unknown=unknown, now_seconds=now_seconds
        )
        if not self._may_balance(joined, step + PLAN_DELAY_STEPS + joined.prefetch_steps):
            return Decision(step=step, action="keep", reason=self._why_unbalanced(joined))
        rollback = self._judge_trial(event, now_seconds)
        if rollback is not None:
            return rollback
        for (worker, record), size in zip(self._known.items(), current, strict=True):
            if size and not record.estimator.is_ready:
                return Decision(step=step, action="keep", reason=f"{worker} is not measured yet")
        models, proposed = self._best(joined, self._known, now_seconds)
        for worker, now, then in zip(joined.workers, current, proposed, strict=True):
            if then and not now and (self._needs_all or worker in self._spares.retried):
                reason = f"measure {worker} again"
                if self._needs_all:
                    reason = "the script evaluates within epochs, so each worker needs a part"
                return Decision(step=step, action="try again", reason=reason, proposed=proposed)
        return self._weigh(step, models, proposed, now_seconds)

    def _weigh(
        self,
        step: int,
        models: Mapping[WorkerId, StepTimeModel],
        proposed: tuple[int, ...],
        now_seconds: float,
    ) -> Decision:
        """Whether the proposed plan is worth the move, by what the last moves brought."""
        _, plan = self._members()
        current = plan.local_batch_sizes
        if self._swings.go_on(step):
            return self._calm(step, models, now_seconds)
        if self._moves.holds(step):
            return self._hold(step, current)
        if self._moves.is_pending(step):
            return Decision(step=step, action="keep", reason="the last move is not judged yet")
        estimators = [record.estimator for record in self._known.values()]
        decision = self._rule.judge(
            tuple(models.values()), estimators, current=current, proposed=proposed, step=step
        )
        if decision.action == "move" and self._moves.is_no_gain(current, proposed):
            return replace(decision, action="keep", reason="it was tried, and is not faster")
        return decision

    def _hold(self, step: int, current: tuple[int, ...]) -> Decision:
        """Back to the fastest plan that was measured; the model is not believed for a while."""
        until = f"no other plan is tried before step {self._moves.hold_until_step}"
        faster = self._moves.faster_than(current)
        if faster is None or (self._needs_all and not all(faster[0])):
            reason = f"the last move brought less than was predicted: {until}"
            return Decision(step=step, action="keep", reason=reason)
        plan, seconds = faster
        return Decision(
            step=step,
            action="roll back",
            reason=f"it was measured to be faster; {until}",
            proposed=plan,
            current_seconds=self._moves.seconds(current),
            proposed_seconds=seconds,
        )

    def _calm(
        self, step: int, models: Mapping[WorkerId, StepTimeModel], now_seconds: float
    ) -> Decision:
        """While speeds swing: the plan that costs the least over some swings."""
        joined, plan = self._members()
        current = plan.local_batch_sizes
        if not self._swings.is_due:
            return Decision(step=step, action="keep", reason="speeds swing")
        proposed, now, then = self._swings.calm_plan(
            models, current, lambda scaled: self._solve(joined, scaled, self._known, now_seconds)
        )
        gain = 1 - then / now
        is_better = gain > CALM_GAIN_RATIO
        return Decision(
            step=step,
            action="move" if is_better else "keep",
            reason=f"speeds swing: over the last swings {gain:.1%} faster than the plan in force",
            proposed=proposed,
            current_seconds=now,
            proposed_seconds=then,
        )

    def _judge_trial(self, event: StepsTimed, now_seconds: float) -> Decision | None:
        """The way back if the plan on trial asks too much of somebody; else it stands."""
        joined, _ = self._members()
        if self._trial is None:
            return None
        self._trial.observe(event.timings)
        if not self._trial.is_over:
            return None
        trial, self._trial = self._trial, None
        overloaded = trial.overloaded(self._known)
        for worker, (size, before) in overloaded.items():
            self._known[worker].reject(size, before, now_seconds=now_seconds)
        models, proposed = self._best(joined, self._known, now_seconds)
        shares = dict(zip(joined.workers, proposed, strict=True))
        predicted = slowest_seconds(tuple(models.values()), proposed)
        avoided = all(shares[worker] < size for worker, (size, _) in overloaded.items())
        if not (overloaded and avoided and predicted < trial.slowest_seconds):
            for worker in overloaded:
                self._known[worker].restore()
            return None
        names = ", ".join(f"{worker} at {size}" for worker, (size, _) in overloaded.items())
        return Decision(
            step=event.step,
            action="roll back",
            reason=f"slowed down by its share: {names}",
            proposed=proposed,
            current_seconds=trial.slowest_seconds,
            proposed_seconds=predicted,
        )

    def _follow(self, decision: Decision) -> None:
        """Prepare for a new plan: larger shares are on trial."""
        _, plan = self._members()
        promised = decision.gain_ratio if decision.action == "move" else math.nan
        self._swings.moved(decision.step)
        self._moves.moved(plan.local_batch_sizes, decision.proposed, promised, decision.step)
        if self._trial is None:
            self._trial = PlanTrial()
        self._trial.begin(self._known, decision.proposed)
        self._rule.forget()
        self._pace.disturb()

    def _unsettle(self) -> None:
        """The workers have changed: judge the plan in force anew."""
        self._trial = None
        self._rule.forget()
        self._pace.disturb()
        self._num_contradictions = 0

    def _why_unbalanced(self, joined: WorkersJoined) -> str:
        if not joined.follows_plan:
            return _why_even(joined)
        return "baseline" if self._config.balance else "balancing is off"

    def _may_balance(self, joined: WorkersJoined, from_step: int) -> bool:
        is_on = joined.follows_plan and self._config.balance
        return is_on and from_step >= self._config.baseline_steps

    def _exchange_steps(self, event: StepsTimed, plan: BatchPlan) -> int:
        if self._config.balance and event.step < self._config.baseline_steps:
            return 1  # so that the baseline ends on time
        return self._pace.exchange_steps(plan.exchange_steps)

    def _best(
        self, joined: WorkersJoined, known: Mapping[WorkerId, WorkerModel], now_seconds: float
    ) -> tuple[dict[WorkerId, StepTimeModel], tuple[int, ...]]:
        """The models of all members, guessed where not measured, and the best plan for them."""
        models = models_or_guesses(
            known,
            relative_speeds=self._config.relative_speeds,
            global_batch_size=joined.global_batch_size,
            memory_bytes=joined.memory_bytes,
        )
        return models, self._solve(joined, models, known, now_seconds)

    def _solve(
        self,
        joined: WorkersJoined,
        models: Mapping[WorkerId, StepTimeModel],
        known: Mapping[WorkerId, WorkerModel],
        now_seconds: float,
    ) -> tuple[int, ...]:
        return best_plan(
            models,
            joined,
            trusted=[record.max_share(now_seconds=now_seconds) for record in known.values()],
            grain=max(joined.undivided, self._config.grain),
            retried=joined.workers if self._needs_all else self._spares.retried,
        )

    def _even(self, joined: WorkersJoined) -> tuple[int, ...]:
        return even_plan(joined, grain=max(joined.undivided, self._config.grain))

    def _members(self) -> tuple[WorkersJoined, BatchPlan]:
        if self._joined is None or self._plan is None:
            raise InvariantError("a decision before the first rendezvous")
        return self._joined, self._plan


def _why_even(joined: WorkersJoined) -> str:
    if joined.shares_fixed:
        return "the script divides its data itself"
    if joined.shares_vary:
        return "each computes until the previous all-reduce ends"
    return "the same share for all"
