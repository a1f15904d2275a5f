"""Tells from the losses alone whether a training has begun to diverge."""

from __future__ import annotations

import math

SMOOTHING = 0.05
"""Weight of a new loss in the running means: they look back over about 20 steps."""

SETTLING_STEPS = 40
"""Losses that are needed before anything is said."""

WORSE_RATIO = 1.3
"""The smoothed loss may rise by so much above the best one it has had: a new learning rate of a
schedule, or a new epoch's order, lets it rise a little without harm."""

NOISE_FACTOR = 4.0
"""And by so many mean deviations, as they were then."""

PATIENCE_STEPS = 10
"""In a row."""

MAX_BAD = 3
"""Losses that are not finite, within `BAD_STEPS`."""

BAD_STEPS = 20


class DivergenceGuard:
    """Watches the losses of one training; deterministic, so that all workers agree without asking.

    Attributes:
        state: All that it knows, as plain numbers; it may be replaced by another worker's.
    """

    def __init__(self) -> None:
        self.state: dict[str, float] = {
            "count": 0,
            "mean": math.nan,
            "deviation": 0.0,
            "best": math.inf,
            "noise": 0.0,
            "worse": 0,
            "bad": 0.0,
        }

    def observe(self, loss: float) -> str:
        """Take in the loss of one more step.

        Args:
            loss: Mean over the global batch; NaN if the step was skipped.

        Returns:
            Why this training diverges, in words; empty as long as it does not.
        """
        state = self.state
        state["bad"] *= 1 - 1 / BAD_STEPS
        if not math.isfinite(loss):
            state["bad"] += 1
            is_bad = state["bad"] > MAX_BAD - 0.5  # earlier ones fade
            return f"{MAX_BAD} losses of the last {BAD_STEPS} were not finite" if is_bad else ""
        if not state["count"]:
            state["mean"] = loss
        state["count"] += 1
        error = loss - state["mean"]
        state["mean"] += SMOOTHING * error
        state["deviation"] += SMOOTHING * (abs(error) - state["deviation"])
        if state["count"] < SETTLING_STEPS:
            return ""
        if state["mean"] < state["best"]:
            state["best"], state["noise"] = state["mean"], state["deviation"]
        worse = state["mean"] - state["best"]
        margin = max((WORSE_RATIO - 1) * abs(state["best"]), NOISE_FACTOR * state["noise"])
        state["worse"] = state["worse"] + 1 if worse > margin else 0
        if state["worse"] < PATIENCE_STEPS:
            return ""
        return f"the loss rose from {state['best']:.4g} to {state['mean']:.4g}"
