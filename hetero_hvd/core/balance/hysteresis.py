"""When a better plan is worth the move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hetero_hvd.core.balance.balancer import slowest_seconds
from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.messages import WorkerId

AT_ONCE_RATIO = 0.10
"""A predicted gain above this does not wait for a second opinion."""

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

    def __str__(self) -> str:
        """All of it on one line."""
        parts = [f"{self.action}: {self.reason}"]
        if math.isfinite(self.current_seconds):
            parts.append(
                f"slowest {self.current_seconds * 1e3:.1f} ms, with "
                f"{'/'.join(map(str, self.proposed))} {self.proposed_seconds * 1e3:.1f} ms"
            )
        parts += [f"{worker} takes {ratio:.2f}x as long" for worker, ratio in self.changed.items()]
        return "; ".join(parts)

    @property
    def gain_ratio(self) -> float:
        """Part of the step's busy time that the proposed plan is predicted to save."""
        return 1 - self.proposed_seconds / self.current_seconds


class ReplanPolicy:
    """Move at once for a large gain, after two agreeing plans for a certain one, else not.

    A gain is certain above the configured minimum and above what the model's uncertainty could
    feign; the noise of single steps does not matter beyond that. Among n workers the slowest
    prediction is the largest of n errors, about sqrt(2 ln n) standard errors too high, so the bar
    grows with n.
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
    ) -> Decision:
        """Decide between the plan in force and the best one now."""
        now, then = slowest_seconds(models, current), slowest_seconds(models, proposed)
        error_now = _uncertainty(models, estimators, current)
        error_then = _uncertainty(models, estimators, proposed)
        threshold = max(self._min_gain_ratio, error_now, error_then)
        gain = 1 - then / now
        previous, self._previous = self._previous, None
        action: Action = "keep"
        if gain <= threshold and gain <= AT_ONCE_RATIO:
            reason = f"a gain of {gain:.1%} is below {threshold:.1%}"
        elif gain > max(AT_ONCE_RATIO, error_now):
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
        )


def _uncertainty(
    models: Sequence[StepTimeModel],
    estimators: Sequence[StepTimeEstimator],
    plan: Sequence[int],
) -> float:
    """By how much noise could feign that the slowest worker is slower, as a ratio."""
    seconds = [model.step_seconds(size) for model, size in zip(models, plan, strict=True)]
    slowest = seconds.index(max(seconds))
    spread = 0.35 + 0.75 * math.sqrt(2 * math.log(len(models)))
    return spread * estimators[slowest].standard_error_ratio(plan[slowest])
