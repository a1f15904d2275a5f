"""How long a worker's step takes as a function of its local batch size, learnt while it works."""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Self

KNOWN_TO_RATIO = 0.01
"""So many rows are remembered that their mean is known to this; fewer would chase noise, more would
hide a drift."""

FEWEST_REMEMBERED, MOST_REMEMBERED = 25, 200

PRIOR_OVERHEAD_RATIO = 0.1
"""Share of the first measured time that is taken for batch-independent; what GPUs show."""

PRIOR_OVERHEAD_SPREAD = 0.15
"""Standard error of that guess."""

PRIOR_SIGMA_RATIO = 0.05
"""Noise of one step's time before enough of it was seen."""

HUBER_LIMIT = 2.0
"""Residuals beyond this many standard errors weigh less, in inverse proportion (Huber, 1964)."""

CUSUM_CLIP, CUSUM_DRIFT, CUSUM_THRESHOLD = 3.0, 0.5, 4.0
"""Standard errors; one clipped residual stays below the threshold, two do not (Page, 1954)."""

DRIFT_THRESHOLD = 8.0
"""Above it, a change that is not certain yet makes the estimator doubt what it knows."""

ALARM_RATIO = math.log(1.08)
"""Smaller changes are left to the recursive fit."""

ALARM_ERRORS = 6.0
"""So are those that noise could feign, in standard errors of the rows since the change; so many as
the noise of real steps comes in bursts."""

MOST_WAITS = 2
"""For so many rows an alarm waits for two that agree; of steps that vary much none may."""

DOUBT_RATIO = 0.06
"""So far the level may have drifted at most, where noise alone would allow for more."""

SHORTEST_SECONDS, LONGEST_SECONDS = 1e-9, 1e9
"""No step takes less or more: such a time was not measured rightly."""

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """step_seconds(x) = overhead_seconds * pieces(x) + seconds_per_sample * x, and 0 for x = 0.

    The pieces are the micro-batches of a step, each a forward and a backward pass of its own: one,
    or where their size is limited a staircase.

    Attributes:
        overhead_seconds: Batch-independent cost of each piece, >= 0.
        seconds_per_sample: Cost of one more sample, > 0.
        micro_batch_size: Samples in one piece at most; 0 = not limited.
    """

    overhead_seconds: float
    seconds_per_sample: float
    micro_batch_size: int = 0

    def step_seconds(self, local_batch_size: int) -> float:
        """Predict the busy time of one step, seconds. A worker without work is never busy."""
        if local_batch_size == 0:
            return 0.0
        overhead_seconds = self.overhead_seconds * pieces(local_batch_size, self.micro_batch_size)
        return overhead_seconds + self.seconds_per_sample * local_batch_size


def pieces(local_batch_size: float, micro_batch_size: int) -> int:
    """Micro-batches in a step with work in it."""
    return max(1, math.ceil(local_batch_size / micro_batch_size)) if micro_batch_size else 1


class StepTimeEstimator:
    """Robust recursive least squares with forgetting for one worker's `StepTimeModel`.

    Noise is taken as proportional to the time (log-normal), so residuals are logarithms of
    measured / predicted and regressors are divided by the prediction. Internally a batch is
    measured in units of the first one seen, so that both parameters are seconds of the same size.

    A change of speed is found by a two-sided CUSUM on clipped standardised residuals. `update`
    reports it and leaves it to the caller to accept it with `rescale`: the caller may know that
    not the worker has changed but its share (past a memory limit, for example).

    Attributes:
        micro_batch_size: See `StepTimeModel`.
    """

    def __init__(self, micro_batch_size: int = 0) -> None:
        self.micro_batch_size = micro_batch_size
        self._unit = 0.0
        self._fixed = 0.0
        self._slope = 0.0
        self._covariance = (0.0, 0.0, 0.0)
        self._sigma = PRIOR_SIGMA_RATIO
        self._residuals: deque[float] = deque(maxlen=40)
        self._recent: deque[tuple[float, float]] = deque(maxlen=3)
        self._up = self._down = 0.0
        self._rising = self._falling = self._waits = 0

    @property
    def is_ready(self) -> bool:
        """Whether anything was measured."""
        return self._unit > 0

    @property
    def model(self) -> StepTimeModel:
        """The best estimate now; needs `is_ready`."""
        return StepTimeModel(
            overhead_seconds=self._fixed,
            seconds_per_sample=self._slope / self._unit,
            micro_batch_size=self.micro_batch_size,
        )

    @property
    def sigma_ratio(self) -> float:
        """Noise of one step's time: its standard deviation divided by its mean."""
        return self._sigma

    def standard_error_ratio(self, local_batch_size: int) -> float:
        """Standard error of the predicted step time, divided by it; grows away from the data.

        Infinite before the first measurement.
        """
        if not self.is_ready:
            return math.inf
        aa, ab, bb = self._covariance
        size = local_batch_size / self._unit
        number, predicted = self._pieces(size), self._predicted(size)
        variance = aa * number * number + 2 * ab * number * size + bb * size * size
        return math.sqrt(max(0.0, variance)) / predicted

    def copy(self) -> Self:
        """An independent estimator in the same state."""
        twin = copy.copy(self)
        twin._residuals = self._residuals.copy()  # noqa: SLF001 - the same class
        twin._recent = self._recent.copy()  # noqa: SLF001
        return twin

    def update(
        self, local_batch_size: int, busy_seconds: float, num_steps: int = 1
    ) -> float | None:
        """Learn from one row.

        Args:
            local_batch_size: Samples per step; rows of 0 teach nothing and are ignored.
            busy_seconds: Mean busy time per step; ignored unless from 1e-9 to 1e9.
            num_steps: Steps averaged; ignored if 0.

        Returns:
            None, or when the worker seems to have changed its speed: measured / predicted time.
        """
        usable = SHORTEST_SECONDS <= busy_seconds <= LONGEST_SECONDS
        if not usable or local_batch_size <= 0 or num_steps <= 0:
            return None
        if not self.is_ready:
            self._start(local_batch_size, busy_seconds)
            return None
        size = local_batch_size / self._unit
        predicted = self._predicted(size)
        residual = math.log(busy_seconds / predicted)
        self._residuals.append(residual * math.sqrt(num_steps))
        self._recent.append((size, busy_seconds))
        standardised = self._learn(size, predicted, residual, num_steps)
        self._sigma = self._measured_sigma()
        return self._alarm(standardised)

    def recall(self, model: StepTimeModel, largest_share: int, smallest_share: int = 0) -> None:
        """Start from a curve that was learnt earlier.

        Args:
            model: The curve.
            largest_share: At which it was measured, samples, > 0.
            smallest_share: The other end, if it was measured there as well, samples; else 0.
        """
        self._unit = float(largest_share)
        self._fixed = model.overhead_seconds
        self._slope = model.seconds_per_sample * largest_share
        self._covariance = self._prior_covariance(1.0)
        if 0 < smallest_share < largest_share:
            between = self._covariance_between(smallest_share / largest_share)
            self._covariance = min(self._covariance, between, key=lambda c: c[0] + c[2])

    def rescale(self, ratio: float) -> None:
        """Accept that the worker is slower (> 1) or faster (< 1) by this ratio from now on."""
        self._fixed *= ratio
        self._slope *= ratio
        self._covariance = self._prior_covariance(self._recent[-1][0] if self._recent else 1.0)
        self._recent.clear()
        self._up = self._down = 0.0
        self._rising = self._falling = self._waits = 0

    def _start(self, local_batch_size: int, busy_seconds: float) -> None:
        self._unit = float(local_batch_size)
        self._fixed = PRIOR_OVERHEAD_RATIO * busy_seconds / self._pieces(1.0)
        self._slope = (1 - PRIOR_OVERHEAD_RATIO) * busy_seconds
        self._covariance = self._prior_covariance(1.0)

    def _pieces(self, size: float) -> int:
        return pieces(round(size * self._unit), self.micro_batch_size)

    def _predicted(self, size: float) -> float:
        return self._fixed * self._pieces(size) + self._slope * size

    def _prior_covariance(self, size: float) -> tuple[float, float, float]:
        """The level at `size` is known to one row's noise; how it splits, to the prior's spread."""
        level = self._sigma**2
        number = self._pieces(size)
        split = (PRIOR_OVERHEAD_SPREAD * self._predicted(size)) ** 2
        return (
            level * self._fixed**2 + split / number**2,
            level * self._fixed * self._slope - split / (number * size),
            level * self._slope**2 + split / size**2,
        )

    def _covariance_between(self, small: float) -> tuple[float, float, float]:
        """Of the line through one row at size 1 and one at a smaller size, each with its noise."""
        numbers = self._pieces(small), self._pieces(1.0)
        errors = self._sigma * self._predicted(small), self._sigma * self._predicted(1.0)
        determinant = numbers[0] - numbers[1] * small
        if determinant == 0:  # a staircase whose steps are alike tells them apart at no size
            return self._prior_covariance(1.0)
        of_fixed = errors[0] / determinant, -small * errors[1] / determinant
        of_slope = -numbers[1] * errors[0] / determinant, numbers[0] * errors[1] / determinant
        return (
            of_fixed[0] ** 2 + of_fixed[1] ** 2,
            of_fixed[0] * of_slope[0] + of_fixed[1] * of_slope[1],
            of_slope[0] ** 2 + of_slope[1] ** 2,
        )

    def _learn(self, size: float, predicted: float, residual: float, num_steps: int) -> float:
        """One step of the recursion; returns the standardised residual."""
        aa, ab, bb = self._covariance
        number, slope = self._pieces(size) / predicted, size / predicted
        gain_a, gain_b = aa * number + ab * slope, ab * number + bb * slope
        noise = self._sigma**2 / num_steps
        variance = number * gain_a + slope * gain_b + noise
        standardised = residual / math.sqrt(variance)
        # An outlier has its noise raised, so a model that is unsure there still believes it.
        variance += noise * max(0.0, abs(standardised) / HUBER_LIMIT - 1)
        correction = residual / variance
        self._fixed += gain_a * correction
        self._slope += gain_b * correction
        remembered = (self._sigma / KNOWN_TO_RATIO) ** 2 / num_steps
        forgetting = 1 - 1 / min(MOST_REMEMBERED, max(FEWEST_REMEMBERED, remembered))
        aa = (aa - gain_a * gain_a / variance) / forgetting
        ab = (ab - gain_a * gain_b / variance) / forgetting
        bb = (bb - gain_b * gain_b / variance) / forgetting
        self._project(aa, ab, bb, size)
        widest = self._prior_covariance(size)
        shrink = min(1.0, (widest[0] + widest[2]) / (aa + bb))
        self._covariance = (aa * shrink, ab * shrink, bb * shrink)
        return standardised

    def _project(self, aa: float, ab: float, bb: float, size: float) -> None:
        """Keep overhead >= 0 and slope > 0, moving the other where the data would have put it."""
        if self._fixed < 0:
            self._slope -= ab / aa * self._fixed
            self._fixed = 0.0
        least = 1e-3 * (self._fixed + abs(self._slope)) / max(1.0, size)
        if self._slope < least:
            self._fixed = max(0.0, self._fixed + ab / bb * (least - self._slope))
            self._slope = least

    def _measured_sigma(self) -> float:
        """Spread of the last residuals, robust, with the prior weighing as much as three."""
        centre = median(self._residuals)
        spread = MAD_TO_SIGMA * median(abs(residual - centre) for residual in self._residuals)
        seen, prior = len(self._residuals), 3
        pooled = (prior * PRIOR_SIGMA_RATIO**2 + seen * spread**2) / (prior + seen)
        return math.sqrt(pooled)

    def _alarm(self, standardised: float) -> float | None:
        """Update the CUSUM; the ratio since the change began if it is certain, large and clear.

        It is clear if the newest two rows agree. If not, either the change began during the first
        of them or after it, or the second is a spike: then the next row decides, or the one after.
        """
        clipped = max(-CUSUM_CLIP, min(standardised, CUSUM_CLIP))
        self._up = max(0.0, self._up + clipped - CUSUM_DRIFT)
        self._down = max(0.0, self._down - clipped - CUSUM_DRIFT)
        self._rising = self._rising + 1 if self._up else 0
        self._falling = self._falling + 1 if self._down else 0
        if max(self._up, self._down) <= CUSUM_THRESHOLD:
            self._waits = 0
            return None
        run = self._rising if self._up > self._down else self._falling
        since = list(self._recent)[-run:]
        changes = [math.log(seconds / self._predicted(size)) for size, seconds in since]
        change = median(changes)
        certain = max(ALARM_RATIO, ALARM_ERRORS * self._sigma / math.sqrt(len(since)))
        if abs(change) > certain:
            newest = changes[-2:]
            is_clear = max(newest) - min(newest) <= certain or self._waits == MOST_WAITS
            self._waits = 0 if is_clear else self._waits + 1
            return math.exp(change) if is_clear else None
        self._waits = 0
        if max(self._up, self._down) > DRIFT_THRESHOLD:
            self._doubt()
        return None

    def _doubt(self) -> None:
        """It drifts: the next rows count for more."""
        aa, ab, bb = self._covariance
        level = min(self._sigma, DOUBT_RATIO) ** 2
        self._covariance = (
            aa + level * self._fixed**2,
            ab + level * self._fixed * self._slope,
            bb + level * self._slope**2,
        )
        self._up = self._down = 0.0
