"""The arithmetic of a benchmark: which batch size next, what the repeats are worth, which curve."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles

from hetero_hvd.core.balance.step_time import PRIOR_OVERHEAD_RATIO, StepTimeModel, pieces
from hetero_hvd.messages.benchmark import SizeMeasured

MAX_SPREAD_RATIO = 0.1
"""Repeats that differ by more are not worth a verdict: something else uses the device."""

FEWEST_REPEATS = 3
BLOCK_STEPS = 4
"""Steps of one size in a row; the first warms up: memory for new shapes, choice of kernels."""

MAX_ROUNDS = 5
NUM_SIZES = 5
PATIENCE = 1.5
"""A larger size is not begun if it would end after so many times the budget."""


def spread(values: Sequence[float]) -> float | None:
    """How much repeats differ: the middle half's width by the median. None for fewer than three.

    Single outliers, which every operating system makes, do not count; a second load does.
    """
    if len(values) < FEWEST_REPEATS:
        return None
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


def verdict(spread_ratio: float | None) -> str:
    """What a measurement is worth, in words."""
    if spread_ratio is None:
        return "too few repeats"
    return "valid" if is_valid(spread_ratio) else "noisy"


def is_valid(spread_ratio: float | None) -> bool:
    """Whether a measurement is worth keeping."""
    return spread_ratio is not None and spread_ratio <= MAX_SPREAD_RATIO


def fit(points: Sequence[tuple[int, float]], micro_batch_size: int) -> StepTimeModel:
    """The curve with the least squares of relative errors through points.

    Minimises sum_i ((a * pieces(x_i) + c * x_i) / t_i - 1)^2 over a >= 0, c > 0.

    Args:
        points: Local batch size, > 0, and its time, seconds > 0; one at least. Of points of one
            size only, a usual part is taken for overhead.
        micro_batch_size: See `StepTimeModel`.
    """
    rows = [(pieces(x, micro_batch_size) / t, x / t) for x, t in points]
    aa = sum(p * p for p, _ in rows)
    ab = sum(p * x for p, x in rows)
    bb = sum(x * x for _, x in rows)
    a, b = sum(p for p, _ in rows), sum(x for _, x in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:  # all in one direction: the two cannot be told apart
        overhead, slope = PRIOR_OVERHEAD_RATIO * a / aa, (1 - PRIOR_OVERHEAD_RATIO) * b / bb
    else:
        overhead, slope = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if overhead < 0:
        overhead, slope = 0.0, b / bb
    if slope <= 0:
        largest = max(x for x, _ in points)
        overhead = a / aa
        slope = 1e-3 * overhead / largest
    return StepTimeModel(
        overhead_seconds=overhead, seconds_per_sample=slope, micro_batch_size=micro_batch_size
    )


def sizes_to_try(global_batch_size: int, *, capacity: int = -1, multiple: int = 1) -> list[int]:
    """Local batch sizes worth measuring, rising: the global batch, and halves of it.

    Args:
        global_batch_size: Samples of a step.
        capacity: Largest size that this worker may have; -1 = not limited.
        multiple: All must be multiples of it; the global batch is.
    """
    largest = global_batch_size if capacity < 0 else min(global_batch_size, capacity)
    tried = {largest // 2**power // multiple * multiple for power in range(NUM_SIZES)}
    return sorted(tried - {0}) or [multiple]


class SizeSchedule:
    """Decides the local batch size of each step, and when enough is known.

    Sizes come in blocks of some steps, rising, round after round: so a device that warms up or is
    used by somebody else for a while shows as spread, not as a wrong curve.

    Args:
        sizes: To try, rising, > 0.
        budget_seconds: What all may take, > 0.
    """

    def __init__(self, sizes: Sequence[int], budget_seconds: float) -> None:
        self._sizes = list(sizes)
        self._budget_seconds = budget_seconds
        self._planned: dict[int, tuple[int, bool]] = {}
        self._first_step: int | None = None
        self._blocks: list[int] = []
        self._seconds: dict[int, list[float]] = defaultdict(list)

    def size_at(self, step: int, elapsed_seconds: float) -> int:
        """The size of a step; asked once or more, in rising order.

        Args:
            step: Any number that rises by one.
            elapsed_seconds: Since the benchmark began.
        """
        if self._first_step is None:
            self._first_step = step
        if step not in self._planned:
            block, place = divmod(step - self._first_step, BLOCK_STEPS)
            while len(self._blocks) <= block:
                self._blocks.append(self._next_size(elapsed_seconds))
            self._planned[step] = self._blocks[block], place == 0
        return self._planned[step][0]

    def observe(self, step: int, size: int, seconds: float) -> None:
        """A step was taken.

        Args:
            step: Which.
            size: Samples that it really had; the end of an epoch has fewer than were asked for.
            seconds: Its time without waits.
        """
        planned, is_warm_up = self._planned.pop(step, (0, True))
        if size == planned and not is_warm_up and math.isfinite(seconds) and seconds > 0:
            self._seconds[size].append(seconds)

    def is_over(self, elapsed_seconds: float) -> bool:
        """Whether no more steps are needed, or there is no more time for them."""
        known = [len(seconds) for seconds in self._seconds.values() if len(seconds) >= 2]  # noqa: PLR2004
        if len(known) == len(self._sizes) and min(known) >= MAX_ROUNDS * (BLOCK_STEPS - 1):
            return True
        if elapsed_seconds < self._budget_seconds:
            return False
        return len(known) >= min(2, len(self._sizes)) or elapsed_seconds > (
            2 * PATIENCE * self._budget_seconds
        )

    def results(self) -> tuple[SizeMeasured, ...]:
        """What was measured, by size; empty if nothing was."""
        return tuple(
            SizeMeasured(
                local_batch_size=size,
                busy_seconds=median(seconds),
                spread_ratio=spread(seconds),
                num_steps=len(seconds),
            )
            for size, seconds in sorted(self._seconds.items())
        )

    def _next_size(self, elapsed_seconds: float) -> int:
        """The next larger one if there is time for it, else the smallest again."""
        before = self._blocks[-1] if self._blocks else 0
        larger = [size for size in self._sizes if size > before]
        if not larger:
            return self._sizes[0]
        if before in self._seconds and len(self._seconds) > 1:
            per_sample = median(self._seconds[before]) / before
            needed = BLOCK_STEPS * per_sample * larger[0]
            if elapsed_seconds + needed > PATIENCE * self._budget_seconds:
                return self._sizes[0]
        return larger[0]
