"""Workers whose speed swings: a plan that follows each swing is always one swing late.

Each change is true and is followed within a few steps; but where it is taken back within
`LASTING_STEPS`, and again, the plan is set for the level that has just ended. Then one plan is kept
that would have cost the least over the rows of the last swings, taken as a whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.balance.move_record import Plan
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.messages import StepTiming, WorkerId

LASTING_STEPS = 30
"""A change that is taken back within so many steps is half of a swing."""

FEWEST_SWINGS = 2
"""So many changes of a worker in a row must each have taken back the one before."""

FEWEST_OVERTAKEN = 4
"""So many plans in a row must each have been overtaken by a change within `LASTING_STEPS`: with
swings as short as the way of a plan into force, changes come just as a new share does."""

HISTORY_ROWS = 100
"""Tables over which the cost of a plan is added up."""

LEVELS = (0.5, 0.75, 0.9)
"""Quantiles of each worker's slowness for which a plan is tried: its usual and its slow level."""

PLAN_ROWS = 10
"""Tables from one look for a calm plan to the next."""


@dataclass(frozen=True, slots=True)
class _LastChange:
    step: int
    is_slower: bool
    num_swings: int


class Swings:
    """Which workers swing, and what a plan would have cost while they did."""

    def __init__(self) -> None:
        self._last: dict[WorkerId, _LastChange] = {}
        self._moved_at_step = -LASTING_STEPS
        self._changed_at_step = -LASTING_STEPS
        self._num_overtaken = 0
        self._num_new_rows = PLAN_ROWS
        self._history: deque[tuple[StepTiming, ...]] = deque(maxlen=HISTORY_ROWS)

    def moved(self, step: int) -> None:
        """A new plan is sent."""
        if step - self._changed_at_step > LASTING_STEPS:
            self._num_overtaken = 0
        self._moved_at_step = step

    def overtaken(self, step: int) -> None:
        """The plan in force no longer fits, as a worker has changed or its share was misjudged."""
        is_early = step - self._moved_at_step <= LASTING_STEPS
        self._num_overtaken = self._num_overtaken + 1 if is_early else 0
        self._changed_at_step = step

    def changed(self, worker: WorkerId, ratio: float, step: int) -> None:
        """A worker takes `ratio` times as long since about this step."""
        last, is_slower, num_swings = self._last.get(worker), ratio > 1, 0
        if last is not None and step - last.step <= LASTING_STEPS:
            num_swings = last.num_swings + (is_slower != last.is_slower)
        self._last[worker] = _LastChange(step, is_slower, num_swings)

    def go_on(self, step: int) -> bool:
        """Whether a worker swings at this step."""
        is_recent = step - self._changed_at_step <= LASTING_STEPS
        return (is_recent and self._num_overtaken >= FEWEST_OVERTAKEN) or any(
            last.num_swings >= FEWEST_SWINGS and step - last.step <= LASTING_STEPS
            for last in self._last.values()
        )

    def observe(self, timings: Sequence[StepTiming]) -> None:
        """Take the next table, rows in rank order."""
        self._history.append(tuple(timings))
        self._num_new_rows += 1

    @property
    def is_due(self) -> bool:
        """Whether enough was measured since the last calm plan for another one."""
        return self._num_new_rows >= PLAN_ROWS

    def calm_plan(
        self,
        models: Mapping[WorkerId, StepTimeModel],
        current: Plan,
        solve: Callable[[Mapping[WorkerId, StepTimeModel]], Plan],
    ) -> tuple[Plan, float, float]:
        """The plan that would have cost the least over the rows of the last swings.

        Args:
            models: What is believed of the members, in rank order. Of each only the form counts
                here, not the level: what a row would have taken with another share is measured
                seconds times predicted over predicted.
            current: The plan in force.
            solve: The best plan for given models.

        Returns:
            That plan, the mean seconds of the slowest worker under the one in force, and under it.
        """
        self._num_new_rows = 0
        believed = list(models.values())
        ratios, weights = self._ratios(believed)
        candidates = {current}
        for level in LEVELS:
            at_level = np.nanquantile(ratios, level, axis=0)
            scaled = {
                worker: replace(
                    model,
                    overhead_seconds=model.overhead_seconds * ratio,
                    seconds_per_sample=model.seconds_per_sample * ratio,
                )
                for (worker, model), ratio in zip(models.items(), at_level.tolist(), strict=True)
            }
            candidates.add(solve(scaled))

        def cost(plan: Plan) -> float:
            alone = [model.step_seconds(size) for model, size in zip(believed, plan, strict=True)]
            return float(np.average((ratios * alone).max(axis=1), weights=weights))

        costs = {plan: cost(plan) for plan in sorted(candidates)}
        best = min(costs, key=costs.__getitem__)
        return best, costs[current], costs[best]

    def _ratios(
        self, models: Sequence[StepTimeModel]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Measured over predicted seconds, (rows, workers), and the number of steps of each row.

        Where a worker was not measured its model is right.
        """
        ratios = [
            [
                row.busy_seconds / model.step_seconds(row.local_batch_size)
                if row.num_steps and row.local_batch_size and math.isfinite(row.busy_seconds)
                else 1.0
                for row, model in zip(rows, models, strict=True)
            ]
            for rows in self._history
        ]
        weights = [max([1, *(row.num_steps for row in rows)]) for rows in self._history]
        return np.array(ratios), np.array(weights, dtype=np.float64)
