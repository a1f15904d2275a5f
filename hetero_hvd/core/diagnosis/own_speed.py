"""The best that a worker has shown: what it is judged by, and how sure that is."""

from __future__ import annotations

import math

from hetero_hvd.core.balance.step_time import StepTimeEstimator

CERTAIN_ERRORS = 3.5
"""Standard errors beyond which it is not chance any more, though it is looked at all the time."""

SAME_ERRORS = 2.0
"""Standard errors up to which two curves are taken for the same."""

BUCKET_RATIO = 1.5
"""Shares within this are judged by one curve. A line through far ones misleads: a small share may
fit into the budget of a CPU quota or into a cache, a large one does not."""

SUSPECT_RATIO = 0.9
"""A worker below this part of its speed may just be getting slow: what it shows at a share at which
it was never seen before is not its best."""

SURER_RATIO = 0.9
"""A curve as good as another one replaces it if its standard error is smaller by this."""

MEDIAN_ERROR = 1.25
"""Standard error of a median, in those of a mean; for normal noise."""


ROWS_TO_SPREAD = 3
"""Rows from which the noise of a worker is told."""


class SpeedBaseline:
    """One worker's best curves, one for each size of share.

    Another curve takes its place if it is faster and that is certain, or if it does not differ by
    more than chance and is better known at the share in question. So neither luck in a few noisy
    steps nor a share at which the worker was never seen before makes it slow afterwards.

    Attributes:
        is_recalled: Whether an earlier job has learnt it.
    """

    def __init__(self) -> None:
        self._best: dict[int, StepTimeEstimator] = {}
        self._sigma = 0.0
        self.is_recalled = False

    @property
    def is_known(self) -> bool:
        """Whether there is a curve."""
        return bool(self._best)

    def recall(self, estimator: StepTimeEstimator, local_batch_size: int) -> None:
        """What an earlier job has learnt, around this share, holds for all shares."""
        if not self._best:
            self._best[bucket(local_batch_size)] = estimator
            self.is_recalled = True

    def learn(
        self,
        estimator: StepTimeEstimator,
        local_batch_size: int,
        *,
        busy_seconds: float,
        speed_ratio: float,
    ) -> None:
        """Compare with what is known now.

        Args:
            estimator: Of the worker, at present; it is copied.
            local_batch_size: Share in question, samples.
            busy_seconds: Measured now; a curve that promises more than that is not believed.
            speed_ratio: Of the worker in its last rows: measured / own speed.
        """
        self._sigma = estimator.sigma_ratio
        best = self._nearest(local_batch_size)
        is_new = bucket(local_batch_size) not in self._best
        is_trusted = is_new and not self.is_recalled and speed_ratio >= SUSPECT_RATIO
        if best is not None and not is_trusted:
            promised = estimator.model.step_seconds(local_batch_size)
            now = max(busy_seconds, promised)
            difference = math.log(now / best.model.step_seconds(local_batch_size))
            error = estimator.standard_error_ratio(local_batch_size)
            old_error = self._error(best, local_batch_size, self._sigma)
            chance = math.hypot(error, old_error)
            if math.log(now / promised) > CERTAIN_ERRORS * math.hypot(error, self._sigma):
                return
            is_faster = difference < -CERTAIN_ERRORS * chance
            # Far from where it was seen nothing is known well: a slow curve may pass for the same.
            is_same = abs(difference) <= SAME_ERRORS * chance and speed_ratio >= SUSPECT_RATIO
            if not (is_faster or (is_same and error < SURER_RATIO * old_error)):
                return
        self._best[bucket(local_batch_size)] = estimator.copy()

    def expected_seconds(self, local_batch_size: int) -> float:
        """What a step of this share should take; NaN if nothing is known."""
        best = self._nearest(local_batch_size)
        return best.model.step_seconds(local_batch_size) if best else math.nan

    def error_ratio(self, local_batch_size: int) -> float:
        """Standard error of what a step of this share should take, as log ratio; 0: not known."""
        best = self._nearest(local_batch_size)
        return best.standard_error_ratio(local_batch_size) if best else 0.0

    def chance_ratio(
        self,
        local_batch_size: int,
        num_rows: int,
        num_steps: int,
        *,
        spread: float = 0.0,
        is_curve_sure: bool = False,
    ) -> float:
        """By how much the median of some rows may be slower by chance, as log ratio, >= 0.

        Args:
            local_batch_size: Their share.
            num_rows: So many.
            num_steps: Averaged in each of them.
            spread: Of the newest rows, as log ratio; the curve may think them steadier.
            is_curve_sure: Leave out what is not known of the best itself: only the rows vary.
        """
        best = self._nearest(local_batch_size)
        # A worker that has just become slow is no noisy one: its newest rows agree.
        is_seen = num_rows >= ROWS_TO_SPREAD and best is not None and self.is_recalled
        sigma = max(best.sigma_ratio, spread) if is_seen and best else self._sigma
        error = self._error(best, local_batch_size, sigma) if best and not is_curve_sure else 0.0
        of_row = max(sigma / math.sqrt(max(1, num_steps)), spread)
        noise = MEDIAN_ERROR * of_row / math.sqrt(max(1, num_rows))
        return CERTAIN_ERRORS * math.hypot(noise, error)

    def _nearest(self, local_batch_size: int) -> StepTimeEstimator | None:
        here = bucket(local_batch_size)
        found = min(self._best, key=lambda known: abs(known - here), default=None)
        return None if found is None else self._best[found]

    def _error(self, best: StepTimeEstimator, local_batch_size: int, sigma: float) -> float:
        """Standard error of a best curve; noise that was not seen then counts as well."""
        error = best.standard_error_ratio(local_batch_size)
        return error * max(1.0, sigma / best.sigma_ratio)


def bucket(local_batch_size: int) -> int:
    """Number of the shares that are judged by one curve."""
    return round(math.log(local_batch_size, BUCKET_RATIO))
