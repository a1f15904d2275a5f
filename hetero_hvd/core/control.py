"""When a better plan is worth the move, and when a move was a mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from hetero_hvd.core.balancer import slowest_seconds
from hetero_hvd.core.known import KnownWorker, own_seconds
from hetero_hvd.core.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.messages import StepTiming, WorkerId

AT_ONCE_RATIO = 0.10
"""A predicted gain above this does not wait for a second opinion."""

TRIAL_ROWS = 3
"""Rows under a new plan before it is judged."""

Action = Literal["keep", "wait", "move", "roll back", "try again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the balancer, with all that it was based on.

    Attributes:
        step: Last step of the rows it is based on.
        action: What was decided.
        reason: Why, in words.
        proposed: The best plan now: local batch sizes in rank order.
        current_seconds: Predicted time of the slowest worker under the plan in force.
        proposed_seconds: The same under the proposed plan.
        threshold_ratio: Gain needed to move.
        changed: Workers whose speed has changed, and by what ratio of times.
    """

    step: int
    action: Action
    reason: str
    proposed: tuple[int, ...] = ()
    current_seconds: float = math.nan
    proposed_seconds: float = math.nan
    threshold_ratio: float = math.nan
    changed: Mapping[WorkerId, float] = field(default_factory=dict)

    @property
    def gain_ratio(self) -> float:
        """Part of the step's busy time that the proposed plan is predicted to save."""
        return 1 - self.proposed_seconds / self.current_seconds


class MoveRule:
    """Move at once for a large gain, after two agreeing plans for a certain one, else not.

    A gain is certain above the configured minimum, above what the model's uncertainty could feign
    and above half of a step's noise. Among n workers the slowest prediction is the largest of n
    errors, about sqrt(2 ln n) standard errors too high, so the bar grows with n.
    """

    def __init__(self, min_gain_ratio: float) -> None:
        self._min_gain_ratio = min_gain_ratio
        self._previous: tuple[int, ...] | None = None

    def forget(self) -> None:
        """Start counting agreeing plans anew: the workers or the plan in force have changed."""
        self._previous = None

    def judge(
        self,
        models: Sequence[StepTimeModel],
        estimators: Sequence[StepTimeEstimator],
        *,
        current: Sequence[int],
        proposed: tuple[int, ...],
        step: int,
        changed: Mapping[WorkerId, float],
    ) -> Decision:
        """Decide between the plan in force and the best one now."""
        now, then = slowest_seconds(models, current), slowest_seconds(models, proposed)
        error, sigma = _uncertainty(models, estimators, (current, proposed))
        threshold = max(self._min_gain_ratio, error, 0.25 * sigma)
        gain = 1 - then / now
        previous, self._previous = self._previous, None
        action: Action = "keep"
        if gain <= threshold and gain <= AT_ONCE_RATIO:
            reason = f"a gain of {gain:.1%} is below {threshold:.1%}"
        elif gain > max(AT_ONCE_RATIO, 2 * sigma):
            action, reason = "move", f"{gain:.0%} faster"
        elif previous is not None and 1 - slowest_seconds(models, previous) / now > threshold:
            action, reason = "move", f"{gain:.1%} faster, confirmed"
        else:
            action, reason = "wait", f"a gain of {gain:.1%} wants a second plan that agrees"
            self._previous = proposed
        return Decision(
            step=step,
            action=action,
            reason=reason,
            proposed=proposed,
            current_seconds=now,
            proposed_seconds=then,
            threshold_ratio=threshold,
            changed=changed,
        )


def _uncertainty(
    models: Sequence[StepTimeModel],
    estimators: Sequence[StepTimeEstimator],
    plans: Sequence[Sequence[int]],
) -> tuple[float, float]:
    """Error that a predicted gain may have, and noise of a step, of the slowest workers."""
    errors, sigmas = [], []
    for plan in plans:
        seconds = [model.step_seconds(size) for model, size in zip(models, plan, strict=True)]
        slowest = seconds.index(max(seconds))
        errors.append(estimators[slowest].standard_error_ratio(plan[slowest]))
        sigmas.append(estimators[slowest].sigma_ratio)
    spread = max(2.0, 1 + math.sqrt(2 * math.log(len(models))))
    return 0.6 * spread * max(errors), max(sigmas)


class Trial:
    """A new plan until enough rows show whether it does what was predicted.

    Workers with a share larger than any that they have proven may meet a cliff there (memory,
    cache, power). If the plan measures worse than the one before, and such a worker is slower than
    predicted, then the share is to blame and not the worker's speed.
    """

    def __init__(
        self,
        known: Mapping[WorkerId, KnownWorker],
        *,
        before: tuple[int, ...],
        before_seconds: float,
        sizes: tuple[int, ...],
    ) -> None:
        self.before = before
        self.before_seconds = before_seconds
        self.sizes = sizes
        self._busy: list[tuple[float, ...]] = []
        self._grown: dict[WorkerId, StepTimeEstimator] = {}
        self.extend(known, sizes)

    @property
    def is_over(self) -> bool:
        """Whether it can be judged."""
        return len(self._busy) >= TRIAL_ROWS

    def extend(self, known: Mapping[WorkerId, KnownWorker], sizes: tuple[int, ...]) -> None:
        """Another plan follows before this one was judged: try that one, against the same past."""
        self.sizes = sizes
        self._busy.clear()
        for (worker, record), size in zip(known.items(), sizes, strict=True):
            if size > record.largest_share:
                self._grown.setdefault(worker, record.estimator.copy())

    def is_suspect(self, worker: WorkerId) -> bool:
        """Whether a slow row of this worker may be the plan's fault."""
        return worker in self._grown

    def observe(self, timings: Sequence[StepTiming]) -> None:
        """Take the next table; it counts if it was measured under the new plan."""
        busy = tuple(own_seconds(timing) for timing in timings)
        measured = tuple(timing.local_batch_size for timing in timings)
        if measured == self.sizes and all(map(math.isfinite, busy)):
            self._busy.append(busy)

    def overloaded(
        self, workers: Sequence[WorkerId], *, tolerance_ratio: float
    ) -> dict[int, StepTimeEstimator]:
        """Ranks whose larger share made the step slower, each with its estimator from before."""
        slow = {}
        for rank, worker in enumerate(workers):
            estimator = self._grown.get(worker)
            if estimator is None or not estimator.is_ready or not self.sizes[rank]:
                continue
            error = 2 * estimator.standard_error_ratio(self.sizes[rank])
            predicted = estimator.model.step_seconds(self.sizes[rank]) * (1 + error)
            allowed = max(self.before_seconds, predicted) * (1 + tolerance_ratio)
            if median(row[rank] for row in self._busy) > allowed:
                slow[rank] = estimator
        return slow
