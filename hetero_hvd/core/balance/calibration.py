"""What workers of whom nothing is known measure before their first step, and what follows from it.

All wait for each other at their admission anyway, and an even share costs as much as the slowest
needs for it. So each first computes a small part of an even share, and then a part of what follows
from that, which takes all about as long as the same part of a balanced step. Where a step takes
long before its first sample, small parts tell little of the speed: parts grow until shares hold, or
until it is known well enough how long each member takes for its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero_hvd.core.balance.balancer import slowest_seconds
from hetero_hvd.core.balance.known import WorkerModel
from hetero_hvd.core.balance.settings import DEFAULT_RULE, BalanceConfig
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.messages import BatchPlan, Calibrated, WorkerId, WorkersJoined

FIRST_RATIO, LAST_RATIO = 1 / 32, 1 / 4
"""Parts of a share that are computed: of an even one, and then of each guess twice as much of it as
before, until a guess holds or so much was computed."""

HOLDS_RATIO = 0.15
"""What a guess loses at most by what was measured since, if it holds."""

KNOWN_RATIO = 0.25
"""Standard error of a member's foretold time at most, if it is known well enough: a first step that
is so far off costs less than one more measurement by all."""

GAIN_RATIO = 0.1
"""What other shares must save to be believed after a pass or two: noise alone promises less."""


def first_ratio(
    config: BalanceConfig, joined: WorkersJoined, known: Mapping[WorkerId, WorkerModel]
) -> float:
    """Part of its share that each member is to compute before the first step; 0: none.

    Args:
        config: What the user says.
        joined: The rendezvous.
        known: Its members.
    """
    if config.calibrate != "auto" or not joined.can_calibrate or len(joined.workers) <= 1:
        return 0.0
    return FIRST_RATIO if _is_somebody_new(config, known) else 0.0


def _is_somebody_new(config: BalanceConfig, known: Mapping[WorkerId, WorkerModel]) -> bool:
    return any(
        not record.estimator.is_ready and worker.node not in config.relative_speeds
        for worker, record in known.items()
    )


def next_ratio(
    plan: BatchPlan,
    known: Mapping[WorkerId, WorkerModel],
    models: Mapping[WorkerId, StepTimeModel],
    sizes: tuple[int, ...],
) -> float:
    """The same for the plan after this one; 0: that needs no further measurement.

    Args:
        plan: By which they have measured.
        known: Its members in rank order, with what they have measured.
        models: What follows from it.
        sizes: The best shares by them, samples.
    """
    if plan.calibration_ratio >= LAST_RATIO:
        return 0.0
    if plan.calibration_ratio <= FIRST_RATIO:  # a single size tells no overhead
        return 2 * plan.calibration_ratio
    then, now = (
        slowest_seconds(tuple(models.values()), each) for each in (sizes, plan.local_batch_sizes)
    )
    is_enough = now <= (1 + HOLDS_RATIO) * then or all(
        record.estimator.standard_error_ratio(size) <= KNOWN_RATIO
        for record, size in zip(known.values(), sizes, strict=True)
        if size
    )
    return 0.0 if is_enough else 2 * plan.calibration_ratio


def learn(known: Mapping[WorkerId, WorkerModel], event: Calibrated) -> None:
    """Take in what the members have measured; of whom steps of this job tell, these tell more."""
    for record, passes in zip(known.values(), event.measured, strict=True):
        for each in passes if record.last_timing is None else ():
            record.estimator.update(each.num_samples, each.seconds)


def believed(
    models: Mapping[WorkerId, StepTimeModel], sizes: tuple[int, ...], *, instead: tuple[int, ...]
) -> tuple[int, ...]:
    """The shares that follow from the models, where they save enough against others.

    Args:
        models: Of the members in rank order.
        sizes: The best shares by them, samples.
        instead: The others.
    """
    now, then = (slowest_seconds(tuple(models.values()), each) for each in (instead, sizes))
    return sizes if then <= (1 - GAIN_RATIO) * now else instead


def known_in_words(
    config: BalanceConfig, joined: WorkersJoined, known: Mapping[WorkerId, WorkerModel]
) -> str:
    """What the plan before it is made of, and why nobody is measured before the first step."""
    given = sum(
        not record.estimator.is_ready and worker.node in config.relative_speeds
        for worker, record in known.items()
    )
    more = f", of {given} the relative_speed is given" if given else ""
    if _is_somebody_new(config, known) and len(known) > 1:
        if config.calibrate == "auto" and not joined.can_calibrate:
            more += "; this way of training allows no passes before its steps"
        elif config.calibrate != "auto" and joined.can_calibrate:
            more += "; calibrate: auto can measure new ones first"
    return f"start: {_measured(known)} were measured before{more}"


def unused_in_words(config: BalanceConfig, joined: WorkersJoined) -> str:
    """Why `calibrate: auto` measures nobody where shares follow no speeds; a sentence's end.

    Empty where nobody has asked for it.
    """
    if config.calibrate != "auto":
        return ""
    if config.rule != DEFAULT_RULE:
        why = f" with rule: {config.rule}"
    elif not config.balance:
        why = " with balance: false"
    elif not joined.follows_plan:
        why = " as shares follow no plan"
    else:
        why = f" before step {config.baseline_steps}, by baseline_steps"
    return f"; calibrate: auto has no effect{why}"


def in_words(known: Mapping[WorkerId, WorkerModel]) -> str:
    """Why the plan after it is as it is."""
    if not any(record.estimator.is_ready for record in known.values()):
        return "start: passes before this step have measured nobody"
    return f"start: {_measured(known)} are measured, some by passes before this step"


def _measured(known: Mapping[WorkerId, WorkerModel]) -> str:
    """How many of the members are."""
    measured = sum(record.estimator.is_ready for record in known.values())
    return f"{measured} of {len(known)} workers"
