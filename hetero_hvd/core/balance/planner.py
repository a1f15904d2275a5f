"""The best plan for what is known now: guesses, trust and spare workers around the solver."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from hetero_hvd.core.balance.balancer import balance, slowest_seconds
from hetero_hvd.core.balance.known import WorkerModel
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.messages import BatchPlan, WorkerId, WorkersJoined

PLAN_DELAY_STEPS = 2
"""The table of step k is waited for after k where a worker has changed, the plan after k+1; without
such haste rank 0 states a later step, see `TimingExchange.submit`."""

SPARE_RATIO = 0.05
"""A worker is left without work only if its first grain would cost the step more than this."""


def stretched(capacities: Sequence[int], global_batch_size: int) -> tuple[int, ...]:
    """Capacities that hold the batch, where the workers that are left hold less at a time.

    Each has its part in as many passes as that takes; the result of a step is the same.

    Args:
        capacities: Largest local batch of each in one pass, samples; -1 = not limited.
        global_batch_size: Samples per optimizer step, > 0.
    """
    total = sum(capacities)
    if not total or any(capacity < 0 for capacity in capacities):
        return tuple(capacities)
    num_passes = max(1, -(-global_batch_size // total))
    return tuple(num_passes * capacity for capacity in capacities)


def even_plan(joined: WorkersJoined, *, grain: int) -> tuple[int, ...]:
    """The same share for all, as far as the capacities allow.

    Raises:
        InfeasiblePlanError: The workers together hold fewer samples.
    """
    same = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=1.0)
    return balance(
        dict.fromkeys(joined.workers, same),
        global_batch_size=joined.global_batch_size,
        capacities=joined.capacities,
        grain=grain,
    )


def first_plan(
    joined: WorkersJoined,
    sizes: Sequence[int],
    *,
    reason: str,
    plan_id: int = 1,
    calibration_ratio: float = 0.0,
) -> BatchPlan:
    """The plan that a membership starts with; it exchanges timings after each step.

    Args:
        joined: The rendezvous.
        sizes: Local batch sizes in rank order, samples per step.
        reason: Why, in words.
        plan_id: 1; 0 for one that any plan of the driver's replaces; more after a calibration.
        calibration_ratio: See `BatchPlan`.
    """
    return BatchPlan(
        rendezvous_id=joined.rendezvous_id,
        plan_id=plan_id,
        from_step=joined.applied_steps,
        exchange_steps=1,
        workers=joined.workers,
        local_batch_sizes=tuple(sizes),
        reason=reason,
        calibration_ratio=calibration_ratio,
    )


def next_plan(
    plan: BatchPlan,
    joined: WorkersJoined,
    sizes: Sequence[int],
    *,
    step: int,
    exchange_steps: int,
    reason: str,
) -> BatchPlan:
    """The plan after `plan`, in force as early as it can be for what was measured at `step`."""
    return BatchPlan(
        rendezvous_id=plan.rendezvous_id,
        plan_id=plan.plan_id + 1,
        from_step=step + PLAN_DELAY_STEPS + joined.prefetch_steps,
        exchange_steps=exchange_steps,
        workers=plan.workers,
        local_batch_sizes=tuple(sizes),
        reason=reason,
    )


def models_or_guesses(
    known: Mapping[WorkerId, WorkerModel],
    *,
    relative_speeds: Mapping[str, float],
    global_batch_size: int,
    memory_bytes: Sequence[float] = (),
) -> dict[WorkerId, StepTimeModel]:
    """The measured model of each worker; for a new one, what its hint says against the others.

    Without a hint, a GPU's memory is one: larger ones are on faster cards as a rule.

    Args:
        known: The members in rank order.
        relative_speeds: Hint per node, > 0.
        global_batch_size: Samples per step; workers are compared at an equal share of them.
        memory_bytes: Of the members' GPUs in rank order; ignored unless all have one.
    """
    sizes = memory_bytes if memory_bytes and min(memory_bytes) > 0 else (1.0,) * len(known)
    largest = max(sizes, default=1.0)
    hints = {
        worker: relative_speeds.get(worker.node, size / largest)
        for worker, size in zip(known, sizes, strict=True)
    }
    models = {w: record.estimator.model for w, record in known.items() if record.estimator.is_ready}
    share = max(1, global_batch_size // len(known))
    full_speed = [model.step_seconds(share) / share * hints[w] for w, model in models.items()]
    cost = median(full_speed) if full_speed else 1.0
    return {
        worker: models.get(worker)
        or StepTimeModel(overhead_seconds=0.0, seconds_per_sample=cost / hints[worker])
        for worker in known
    }


def best_plan(
    models: Mapping[WorkerId, StepTimeModel],
    joined: WorkersJoined,
    *,
    trusted: Sequence[int],
    grain: int,
    retried: Collection[WorkerId] = (),
) -> tuple[int, ...]:
    """The fastest plan within the capacities and, where that is possible, the trusted shares.

    A worker whose first grain would cost the step no more than `SPARE_RATIO` keeps that grain, so
    that it stays measured; the others are spares.

    Args:
        models: Step-time model per worker, in rank order.
        joined: The rendezvous: batch and capacities.
        trusted: Largest local batch to ask for, samples; -1 = not limited. Raised together, by
            doubling, where they do not hold the batch: after losses the rest must carry it.
        grain: Samples that are never split.
        retried: Spares to measure again: they get one grain at whatever cost.

    Raises:
        InfeasiblePlanError: The capacities hold fewer samples.
    """
    global_batch_size = joined.global_batch_size
    limits = _within(joined.capacities, trusted, global_batch_size, grain)
    plan = balance(models, global_batch_size=global_batch_size, capacities=limits, grain=grain)
    if all(plan):
        return plan
    slowest = slowest_seconds(tuple(models.values()), plan)
    at_least = [
        grain if limit and (worker in retried or first <= slowest / (1 - SPARE_RATIO)) else 0
        for (worker, model), limit in zip(models.items(), limits, strict=True)
        for first in [model.step_seconds(grain)]
    ]
    if sum(at_least) > global_batch_size:
        return plan
    return balance(
        models,
        global_batch_size=global_batch_size,
        capacities=limits,
        at_least=at_least,
        grain=grain,
    )


def _within(
    capacities: Sequence[int], trusted: Sequence[int], global_batch_size: int, grain: int
) -> list[int]:
    """Both limits in one: samples per worker, all >= 0."""
    held = [global_batch_size + grain if c < 0 else c for c in capacities]
    asked = [global_batch_size + grain if t < 0 else max(t, grain) for t in trusted]
    while True:
        limits = [min(pair) for pair in zip(held, asked, strict=True)]
        if sum(limit // grain * grain for limit in limits) >= global_batch_size or limits == held:
            return limits
        asked = [2 * limit for limit in asked]
