"""What is known about one worker, across all rendezvous of a job."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.messages import StepTiming

TRUST_RATIO = 2
"""A worker is never asked for more than this many times the largest share measured on it."""

FIRST_FAILED_SECONDS, LAST_FAILED_SECONDS, FAILED_GROWTH = 300.0, 3600.0, 4
"""How long a share that measured worse than predicted is remembered: noise can look like a cliff,
so at first not for long, and longer each time that it is confirmed."""

SMALLEST_GAP_RATIO = 0.1
"""A cliff is not searched for more closely than this: each look beyond it is dear."""

LASTING_ROWS, FEWEST_ROWS = 8, 3
"""A wait for data counts once it has lasted this many rows; fewer at the start."""


def own_seconds(timing: StepTiming) -> float:
    """Busy seconds per step of this row: 0 for a worker without work, NaN if not measured.

    Under a CPU quota a worker that others do not wait for may be done sooner, as it has saved up,
    and what the reduction takes of the quota holds it up in a wait; as the last one it takes what
    the quota gives for all of that.
    """
    if timing.local_batch_size == 0:
        return 0.0
    return max(timing.busy_seconds, timing.quota_seconds) if timing.num_steps else math.nan


class LastingWait:
    """The part of the data wait that stays: a slow disk counts against a worker only if it lasts.

    It is the smallest wait per sample of the last rows, so a transient one is ignored, however
    long it blocks one step, and a wait that ends is forgotten at once.
    """

    def __init__(self) -> None:
        self._per_sample: deque[float] = deque(maxlen=LASTING_ROWS)

    def seconds(self, local_batch_size: int, data_wait_seconds: float) -> float:
        """Take the next row's wait; return what of it has lasted, seconds per step."""
        self._per_sample.append(data_wait_seconds / local_batch_size)
        if len(self._per_sample) < FEWEST_ROWS:
            return 0.0
        return min(self._per_sample) * local_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedProfile:
    """What is worth keeping about a worker when the job has ended.

    Attributes:
        model: Its step-time model.
        largest_share: The largest share that it has carried, samples, > 0.
        smallest_share: The smallest of several that the model was measured at, samples; 0 = how the
            time is divided between overhead and samples may be a guess.
    """

    model: StepTimeModel
    largest_share: int
    smallest_share: int = 0

    def estimator(self) -> StepTimeEstimator:
        """One that starts from here."""
        estimator = StepTimeEstimator(self.model.micro_batch_size)
        estimator.recall(self.model, self.largest_share, self.smallest_share)
        return estimator


class WorkerModel:
    """One worker's step-time estimator and the shares that it has proven to carry.

    Attributes:
        estimator: Its step-time model.
        largest_share: Largest local batch that it carried as predicted, samples; 0 = none yet.
        last_timing: Its last row that was measured.

    Args:
        micro_batch_size: Samples in one of its forward passes at most; 0 = not limited.
    """

    def __init__(self, micro_batch_size: int = 0) -> None:
        self.micro_batch_size = micro_batch_size
        self.estimator = StepTimeEstimator(micro_batch_size)
        self.largest_share = 0
        self.last_timing: StepTiming | None = None
        self._failed_share = math.inf
        self._failed_until_seconds = -math.inf
        self._num_failures = 0
        self._rows_to_confirm = 0
        self._withdrawn = self.estimator
        self._wait = LastingWait()

    @property
    def curve(self) -> SpeedProfile | None:
        """What to remember of it; None if nothing was measured in this job."""
        if not (self.estimator.is_ready and self.largest_share and self.last_timing):
            return None
        return SpeedProfile(model=self.estimator.model, largest_share=self.largest_share)

    def split(self, micro_batch_size: int) -> None:
        """Its micro-batches have another size from now on; what each costs stays known."""
        self.micro_batch_size = micro_batch_size
        for estimator in (self.estimator, self._withdrawn):
            estimator.micro_batch_size = micro_batch_size

    def recall(self, curve: SpeedProfile) -> None:
        """Start from what was remembered; measurements replace it."""
        self.estimator = curve.estimator()
        self.estimator.micro_batch_size = self.micro_batch_size
        self.largest_share = curve.largest_share

    def observe(self, timing: StepTiming) -> float | None:
        """Learn from a row; the ratio of the change when it seems to have changed its speed."""
        busy, size = own_seconds(timing), timing.local_batch_size
        if size == 0 or not math.isfinite(busy) or size >= self._failed_share:
            return None
        self.last_timing = timing
        self._rows_to_confirm = max(0, self._rows_to_confirm - 1)
        compute = busy - timing.data_wait_seconds
        lasting = self._wait.seconds(size, timing.data_wait_seconds)
        return self.estimator.update(size, compute + lasting, timing.num_steps)

    def accept(self, local_batch_size: int) -> None:
        """This share was measured and did what was predicted."""
        if local_batch_size < self._failed_share:
            self.largest_share = max(self.largest_share, local_batch_size)

    def reject(
        self, local_batch_size: int, before: StepTimeEstimator, *, now_seconds: float
    ) -> None:
        """This share slowed it down, or it has changed: back to what it carried, to see which.

        Args:
            local_batch_size: The share, samples.
            before: The estimator as it was before that share.
            now_seconds: The time now.
        """
        self._withdrawn = self.estimator
        self.estimator = before
        self._failed_share = local_batch_size
        seconds = FIRST_FAILED_SECONDS * FAILED_GROWTH**self._num_failures
        self._failed_until_seconds = now_seconds + min(seconds, LAST_FAILED_SECONDS)
        self._num_failures = min(self._num_failures + 1, 10)
        self._rows_to_confirm = FEWEST_ROWS

    def restore(self) -> None:
        """Take the last `reject` back: nothing better is known than to go on with that share."""
        self.estimator = self._withdrawn
        self.reset()

    def reset(self) -> None:
        """Void past failures: the cluster or the worker has changed."""
        self._failed_share = math.inf
        self._rows_to_confirm = 0

    def accept_change(self, ratio: float) -> None:
        """The worker itself has changed its speed, at a share that it carries."""
        self.estimator.rescale(ratio)
        if self._rows_to_confirm:
            self.reset()  # not the larger share was to blame, but this change

    def max_share(self, *, now_seconds: float) -> int:
        """Largest local batch to ask for, samples; -1 = not limited.

        After a failure it is the proven share until rows have confirmed it, then half way to the
        failed one: a cliff is approached by bisection, and each failure halves the next step.
        """
        if self.largest_share == 0:
            return -1
        if self._rows_to_confirm:
            return self.largest_share
        limit = TRUST_RATIO * self.largest_share
        if now_seconds >= self._failed_until_seconds:
            self.reset()
        if self._failed_share - self.largest_share < SMALLEST_GAP_RATIO * self.largest_share:
            return self.largest_share
        return int(min(limit, (self.largest_share + self._failed_share) // 2))
