"""Whether workers carry the larger shares that a new plan gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from hetero_hvd.core.balance.known import WorkerModel, own_seconds
from hetero_hvd.core.balance.step_time import StepTimeEstimator
from hetero_hvd.messages import StepTiming, WorkerId

TRIAL_ROWS = 3
"""Rows under a new plan before it is judged."""

MIN_LOSS_RATIO = 0.08
"""Loss of speed that is put down to the share."""

LOSS_SIGMAS = 3.0
"""The same in noise widths: four standard errors of the median of three rows."""


class PlanTrial:
    """A new plan until enough rows show that no worker has met a cliff (memory, cache, power).

    A larger share never lowers the speed of a worker with overhead + cost per sample, whatever
    they are. So one whose samples per second fall at a share larger than it has proven shows that
    the share is to blame, or that it has changed at this very moment; asking it for its proven
    share tells which.
    """

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()
        self._busy: list[tuple[float, ...]] = []
        self._before: dict[WorkerId, StepTimeEstimator] = {}

    @property
    def is_over(self) -> bool:
        """Whether it can be judged."""
        return len(self._busy) >= TRIAL_ROWS

    @property
    def slowest_seconds(self) -> float:
        """Median time of the slowest worker under the plan on trial; needs `is_over`."""
        per_worker: list[float] = [median(column) for column in zip(*self._busy, strict=True)]
        return max(per_worker)

    def begin(self, known: Mapping[WorkerId, WorkerModel], sizes: tuple[int, ...]) -> None:
        """Try these shares; if another plan was on trial, what was known before it still counts."""
        self._sizes = sizes
        self._busy.clear()
        for (worker, record), size in zip(known.items(), sizes, strict=True):
            if 0 < record.largest_share < size:
                self._before.setdefault(worker, record.estimator.copy())

    def is_suspect(self, worker: WorkerId) -> bool:
        """Whether a slow row of this worker may be the plan's fault."""
        return worker in self._before

    def observe(self, timings: Sequence[StepTiming]) -> None:
        """Take the next table; it counts if it was measured under the plan on trial."""
        busy = tuple(own_seconds(timing) for timing in timings)
        measured = tuple(timing.local_batch_size for timing in timings)
        if measured == self._sizes and all(map(math.isfinite, busy)):
            self._busy.append(busy)

    def overloaded(
        self, known: Mapping[WorkerId, WorkerModel]
    ) -> dict[WorkerId, tuple[int, StepTimeEstimator]]:
        """Workers slowed down by their share: that share, and the estimator from before it."""
        found = {}
        for rank, (worker, record) in enumerate(known.items()):
            before, size = self._before.get(worker), self._sizes[rank]
            if before is None or size <= record.largest_share:
                continue
            seconds_per_sample = median(row[rank] for row in self._busy) / size
            proven = before.model.step_seconds(record.largest_share) / record.largest_share
            # At the start little is known of the noise; later rows know it, and the loss too.
            sigma = min(record.estimator.sigma_ratio, 2 * before.sigma_ratio)
            sigma = max(before.sigma_ratio, sigma)
            tolerance = max(MIN_LOSS_RATIO, LOSS_SIGMAS * sigma)
            if seconds_per_sample > proven * (1 + tolerance):
                found[worker] = (size, before)
        return found
