"""Who is slower than it should be, and why: judged against what the device itself can do.

Rules that compare workers with each other flag healthy slow cards. Here each worker is compared
with its own best curve, and what slows all of them alike is left out, part by part of the step: two
workers with different troubles do not excuse each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

from hetero_hvd.core.balance.step_time import StepTimeEstimator
from hetero_hvd.core.diagnosis.lost_time import PARTS, Loss
from hetero_hvd.core.diagnosis.watched_worker import NOW_ROWS, VERDICT_ROWS, WatchedWorker
from hetero_hvd.messages import Cause, StepTiming, StragglerReported, WorkerId

IDLE_ROWS = 2
"""A worker without samples in so many rows has lost them; in one, an epoch may have ended."""

MAX_LEFT_OUT = 100
"""More steps than that between two rows are those of another membership."""

COMMON_QUANTILE = 4
"""What three quarters of the workers lose is lost by all alike."""


class StragglerWatch:
    """Judges each table of timings; says something only when a worker's state changes."""

    def __init__(self) -> None:
        self._watched: dict[WorkerId, WatchedWorker] = {}
        self._step = -1
        self._shares_vary = False

    @property
    def fallen(self) -> set[WorkerId]:
        """Workers that were well in this job and are slow now: that is not what they are."""
        return {worker for worker, watched in self._watched.items() if watched.has_fallen}

    def recall(self, worker: WorkerId, curve: StepTimeEstimator, local_batch_size: int) -> None:
        """What an earlier job has learnt of a worker around this share; first of all."""
        self._watched.setdefault(worker, WatchedWorker()).best.recall(curve, local_batch_size)

    def started(self, worker: WorkerId) -> None:
        """Its process has begun anew: what it was is over, even if no membership was without it."""
        if worker in self._watched:
            self._watched[worker].is_away = True

    def begin(
        self, workers: Collection[WorkerId], applied_steps: int = 0, *, shares_vary: bool = False
    ) -> None:
        """A membership begins. Who was not in the one before is judged anew.

        Args:
            workers: Its members.
            applied_steps: Before it.
            shares_vary: Whether a worker takes what it gets done: nothing in an exchange is usual.
        """
        self._shares_vary = shares_vary
        for worker in workers:
            self._watched.setdefault(worker, WatchedWorker())
        for worker, watched in self._watched.items():
            if watched.is_away and worker in workers:
                watched.join(applied_steps)
            watched.is_away = worker not in workers

    def observe(
        self,
        workers: Sequence[WorkerId],
        rows: Sequence[StepTiming],
        curves: Mapping[WorkerId, StepTimeEstimator],
        *,
        step: int = -1,
        is_whole: bool = True,
    ) -> list[StragglerReported]:
        """Take the next table.

        Args:
            workers: Members in rank order.
            rows: Their timings.
            curves: What is known of them now; may lack some.
            step: Last step of the table.
            is_whole: Whether its steps had the whole batch: at the end of an epoch all have less.
        """
        losses: dict[WorkerId, Loss | None] = {}
        for worker, row in zip(workers, rows, strict=True):
            watched = self._watched.setdefault(worker, WatchedWorker())
            watched.look(row)
            losses[worker] = watched.measure(row, curves.get(worker))
        common = _common([loss for loss in losses.values() if loss is not None])
        num_steps, self._step = step - self._step, step
        found = []
        for worker, row in zip(workers, rows, strict=True):
            loss, watched = losses[worker], self._watched[worker]
            if loss is not None:
                verdict = None
                has_lost = is_whole and not self._shares_vary
                if has_lost and watched.has_fewer(row.local_batch_size):
                    verdict = self._last_word(worker, step)
                num_left_out = min(MAX_LEFT_OUT, max(0, num_steps - row.num_steps))
                watched.take(loss, loss.without(common(loss)), step, num_left_out)
                verdict = verdict or self._judge(worker, step)
            elif row.num_steps and not row.local_batch_size:
                verdict = None if self._shares_vary else self._without_samples(worker, step)
            else:
                verdict = self._incomplete(worker, row, step)
            if verdict is not None:
                found.append(verdict)
        return found

    def _judge(self, worker: WorkerId, step: int) -> StragglerReported | None:
        watched = self._watched[worker]
        if watched.state != "slow" and (ratio := watched.found_slow()) is not None:
            return watched.tell(worker, step, ratio)
        if watched.state != "healthy" and watched.is_well_again():
            since_step = watched.recover(step)
            return _well(worker, step, median(watched.last(VERDICT_ROWS)), since_step)
        if watched.state == "slow" and watched.has_changed():
            return watched.tell(worker, step, median(watched.last(NOW_ROWS)))
        return None

    def _without_samples(self, worker: WorkerId, step: int) -> StragglerReported | None:
        """A worker that is left without samples, which the last batch of an epoch does, too."""
        watched = self._watched[worker]
        watched.num_idle_rows += 1
        return self._last_word(worker, step) if watched.num_idle_rows == IDLE_ROWS else None

    def _last_word(self, worker: WorkerId, step: int) -> StragglerReported | None:
        """By what it did with samples that it has no longer: that tells most of it."""
        watched = self._watched[worker]
        ratio = watched.found_slow_at_last()
        if ratio is None or watched.state == "incomplete":
            return None
        if watched.state == "slow" and not watched.is_much_worse(ratio):
            return None
        watched.is_intermittent = False
        return watched.tell(worker, step, ratio)

    def _incomplete(self, worker: WorkerId, row: StepTiming, step: int) -> StragglerReported | None:
        """A worker that has work and whose timings are missing: that is said once."""
        watched = self._watched[worker]
        watched.num_idle_rows = 0
        is_missing = row.local_batch_size > 0 and row.num_steps > 0 and watched.best.is_known
        if not is_missing or watched.state == "incomplete":
            return None
        watched.state = "incomplete"
        return _well(worker, step, math.nan, step)


def _common(losses: Sequence[Loss]) -> Callable[[Loss], dict[Cause, float]]:
    """What all workers lose alike, by part: as many seconds, or as much of what a step should take.

    Returns:
        Gives the seconds that one of them loses so.
    """
    if len(losses) < 2:  # noqa: PLR2004 - alone, nobody else suffers
        return lambda _: {}
    which = len(losses) // COMMON_QUANTILE
    ratios: dict[Cause, float] = {}
    seconds: dict[Cause, float] = {}
    parts = [(loss.parts, loss.expected_seconds) for loss in losses]
    for part in PARTS:
        lost = [(max(0.0, found.get(part, 0.0)), expected) for found, expected in parts]
        ratios[part] = sorted(ratio for ratio, _ in lost)[which]
        seconds[part] = sorted(ratio * expected for ratio, expected in lost)[which]
    return lambda loss: {p: max(ratios[p] * loss.expected_seconds, seconds[p]) for p in PARTS}


def _well(worker: WorkerId, step: int, speed_ratio: float, since_step: int) -> StragglerReported:
    return StragglerReported(
        step=step,
        worker=worker,
        is_slow=False,
        speed_ratio=speed_ratio,
        cause=None,
        since_step=since_step,
    )
