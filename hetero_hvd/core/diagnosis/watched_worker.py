"""One worker as the straggler watch sees it: the best that it has shown, and its last rows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from hetero_hvd.core.balance.step_time import MAD_TO_SIGMA, StepTimeEstimator
from hetero_hvd.core.diagnosis.lost_time import EXPLAINED_RATIO, SMOOTHING, Loss, Usual, causes_of
from hetero_hvd.core.diagnosis.own_speed import BUCKET_RATIO, CERTAIN_ERRORS, SpeedBaseline, bucket
from hetero_hvd.messages import Cause, StepTiming, StragglerReported, WorkerId

VERDICT_RATIO, HEALTHY_RATIO = 0.85, 0.95
"""Part of its own speed below which a worker is found slow, and above which it is well again."""

VERDICT_ROWS, NOW_ROWS = 8, 3
FEWEST_ROWS = 16
"""Before that only those are judged who were measured in an earlier job or before they left: too
little is known of how much a worker's steps vary."""

WINDOWS = (VERDICT_ROWS, 16, 32)
"""Rows whose median is judged; where steps vary much it takes more of them to be sure."""

FEWEST_SPELLS, FEWEST_LARGE_SPELLS, QUIET_ROWS = 3, 2, 16
"""So many spells of bad rows in the longest window are no accident, nor are so many large ones;
they are over after so many good rows."""

LARGE_RATIO = 0.5
"""Spells are large if a worker has less than this part of its own speed from the first of them on,
even without the worst row."""

NOISE_SECONDS, NOISE_RATIO = 0.005, 0.3
"""What a busy operating system costs a step now and then is no straggler's doing: so much, but of a
short step no more than this part."""

USUAL_RATIO = 1.25
"""A worker that needs less than so many times the usual processor time is not slow itself."""

CHANGED_RATIO = 0.25
"""So much slower or faster than what was told of a straggler is worth another word."""


@dataclass(frozen=True)
class _Row:
    """What was made of a row.

    Attributes:
        loss: Its own, against what it should have been.
        first_step: Of the row.
        ratio: Speed / own speed, without what all lose alike.
        is_bad: Whether that is worse than chance.
        num_left_out: Steps before it that no row contains, since the worker saw itself change after
            them: they were as they should be.
    """

    loss: Loss
    first_step: int
    ratio: float
    is_bad: bool
    num_left_out: int


class WatchedWorker:
    """The best that it has shown, and its last rows."""

    def __init__(self) -> None:
        self.best = SpeedBaseline()
        self.usual = Usual()
        self.granted = self.most_granted = 0.0
        self.smooth = self.smooth_alone = 1.0
        self.rows: deque[_Row] = deque(maxlen=max(WINDOWS))
        self.well_step = self._last_step = -1
        self.joined_step = 0
        self.slow_buckets: set[int] = set()
        self.told: tuple[tuple[Cause, ...], float] = ((), math.nan)
        self.num_told_rows = self.num_rows_well = self.num_idle_rows = 0
        self.is_intermittent = self.was_known = self.was_slow = False
        self.is_away = True
        self.state: Literal["healthy", "slow", "incomplete"] = "healthy"

    def measure(self, row: StepTiming, estimator: StepTimeEstimator | None) -> Loss | None:
        """Compare a row with what it should be; None where one of them is not known."""
        size, own = row.local_batch_size, row.own_seconds
        if size == 0 or row.num_steps == 0 or not own > 0:
            return None
        if estimator is not None:
            busy = row.busy_seconds
            # Even if others lose as much: what a step then takes at a new share is not its best.
            shown = self.smooth_alone if self.state != "slow" else self.told[1]
            self.best.learn(estimator, size, busy_seconds=busy, speed_ratio=shown)
        expected_busy = self.best.expected_seconds(size)
        if not math.isfinite(expected_busy):
            return None
        expected = expected_busy + self.usual.of("script", row, default=row.other_seconds)
        is_well = own - expected <= _noise_seconds(expected)
        ratio = max(1.0, expected / own) if is_well else expected / own
        granted = self._granted_ratio(row, expected)
        if is_held_back := math.isfinite(granted):
            usual = self.usual.of("processor", row, default=math.inf)
            is_thrifty = row.processor_seconds <= USUAL_RATIO * usual
            ratio = granted if is_thrifty else min(granted, ratio)
            expected_busy -= expected - ratio * own  # of what the quota does not give
        return Loss(
            row=row,
            speed_ratio=ratio,
            excess=self.usual.excess(row, expected_busy),
            is_held_back=is_held_back,
        )

    def _granted_ratio(self, row: StepTiming, expected: float) -> float:
        """Processor time it gets / it ever got, where a CPU quota explains the time lost; else NaN.

        A quota lets a worker that often waits for others run as if there were none, until its
        share grows: it is not slow as long as it gets all that the quota ever gave it.
        """
        if not (self.most_granted and row.throttled_seconds > 0 and row.processor_seconds > 0):
            return math.nan
        own, entitled = row.own_seconds, row.processor_seconds / self.most_granted
        lost = own - min(expected, entitled)
        explains = row.throttled_seconds >= EXPLAINED_RATIO * lost
        is_lost = lost > _noise_seconds(expected)
        return min(1.0, entitled / own) if is_lost and explains else math.nan

    def look(self, row: StepTiming) -> None:
        """What it gets of a processor."""
        if row.step_seconds > 0 and math.isfinite(row.processor_seconds):
            now = row.processor_seconds / row.step_seconds
            self.granted += SMOOTHING * (now - self.granted)
            self.most_granted = max(self.most_granted, self.granted)

    def take(self, loss: Loss, own: Loss, step: int, num_left_out: int) -> None:
        """Keep a row; a healthy one is learnt from, unless it only looks so beside slow others.

        Args:
            loss: Of the row.
            own: What of it others do not lose alike.
            step: Last one of the row.
            num_left_out: See `_Row`.
        """
        ratio = own.speed_ratio
        chance = self.best.chance_ratio(loss.row.local_batch_size, 1, loss.row.num_steps)
        is_bad = ratio < VERDICT_RATIO * math.exp(-chance)
        first_step = step - loss.row.num_steps + 1
        self.rows.append(_Row(own, first_step, ratio, is_bad, num_left_out))
        if self.state == "slow":
            self._see_slow_buckets([self.rows[-1]])
        self.smooth += SMOOTHING * (ratio - self.smooth)
        self.smooth_alone += SMOOTHING * (min(ratio, loss.speed_ratio) - self.smooth_alone)
        self.num_told_rows += 1
        self.num_idle_rows = 0
        self.num_rows_well += self.state == "healthy"
        if min(ratio, loss.speed_ratio) >= HEALTHY_RATIO:
            self.usual.learn(loss.row)
        if len(self.rows) >= VERDICT_ROWS and median(self.last(VERDICT_ROWS)) >= HEALTHY_RATIO:
            self.was_slow = False
        if self.state != "slow":
            if ratio >= VERDICT_RATIO:
                self.well_step = step
            elif self.was_well and self.well_step == self._last_step:
                self.well_step = first_step - 1  # steps that no row contains were well
        self._last_step = step

    def join(self, applied_steps: int) -> None:
        """It was no member: what it was told of is over, and its next rows count.

        If it was slow, what it shows at a new share is still not its best.
        """
        self.joined_step = applied_steps
        self.was_known = self.was_known or not self.has_too_few_rows
        self.was_slow = self.was_slow or self.state == "slow"
        self.rows.clear()
        self.slow_buckets.clear()
        self.smooth = 1.0
        self.num_rows_well = self.num_idle_rows = 0
        self.is_intermittent = False
        self.state = "healthy"

    @property
    def has_too_few_rows(self) -> bool:
        """Whether too little is known of how much its steps vary."""
        is_known = self.was_known or self.best.is_recalled
        return len(self.rows) < (NOW_ROWS if is_known else FEWEST_ROWS)

    @property
    def has_fallen(self) -> bool:
        """Whether it was well in this job and is slow as far as is known: that is new."""
        return self.was_well and (self.was_slow or self.state == "slow")

    @property
    def was_well(self) -> bool:
        """Whether any row was as it should be."""
        return self.well_step >= 0

    def causes(self) -> dict[Cause, float]:
        """What accounts for the time lost in the newest bad rows; nothing if that is not known."""
        return self._causes_of(self._newest_losses())

    def _causes_of(self, losses: Sequence[Loss]) -> dict[Cause, float]:
        """Of a worker that was never well only `compute` can be told: see `Usual.excess`."""
        causes = causes_of(losses)
        return causes if self.usual.seconds or causes.keys() == {"compute"} else {}

    def _newest_losses(self) -> list[Loss]:
        slow = [row.loss for row in self.rows if row.ratio < VERDICT_RATIO]
        return (slow or [row.loss for row in self.rows])[-NOW_ROWS:]

    def _lasting_causes(self) -> set[Cause]:
        """Those that each of the newest bad rows tells of by itself."""
        each = [set(self._causes_of([loss])) for loss in self._newest_losses()]
        return set.intersection(*each) if each else set()

    def tell(self, worker: WorkerId, step: int, ratio: float) -> StragglerReported:
        """That it is slow, how slow and why."""
        causes = self.causes()
        self.told = (tuple(causes), ratio)
        self.state = "slow"
        self.was_slow = False
        self._see_slow_buckets(self.rows)
        self.num_told_rows = self.num_rows_well = 0
        return StragglerReported(
            step=step,
            worker=worker,
            is_slow=True,
            speed_ratio=ratio,
            cause=next(iter(causes), "unknown"),
            since_step=max(self.well_step + 1, self.joined_step),
            causes={str(cause): part for cause, part in causes.items()},
        )

    def _see_slow_buckets(self, rows: Iterable[_Row]) -> None:
        """Shares at which it was seen to be about as slow as was told."""
        for row in rows:
            if row.ratio < math.sqrt(self.told[1]):
                self.slow_buckets.add(bucket(row.loss.row.local_batch_size))

    def last(self, num_rows: int) -> list[float]:
        """The newest ratios."""
        return [row.ratio for row in list(self.rows)[-num_rows:]]

    def found_slow(self) -> float | None:
        """Its speed ratio if it is slow now and that is no chance; None if it is not.

        Either the median of a window is bad, or bad rows come again and again and their cost is
        large. Rows whose lost time the kernel's account of a quota explains are no chance. Who left
        while it was slow is so still, however little is known of its best at the share that it has.
        """
        if self.has_too_few_rows or (self.was_known and len(self.rows) < VERDICT_ROWS):
            return None  # the first steps of a process may be slow, and only it has begun anew
        now = median(self.last(NOW_ROWS))
        latest = VERDICT_RATIO * math.exp(-self._chance(VERDICT_ROWS))
        for num_rows in WINDOWS:
            found = self.last(num_rows)
            worst = VERDICT_RATIO * math.exp(-self._chance(num_rows))
            if now < VERDICT_RATIO and self.smooth < latest and median(found) < worst:
                self.is_intermittent = False
                return now
        if self.was_slow and len(self.rows) >= FEWEST_ROWS and now < VERDICT_RATIO:
            noise = self._chance(FEWEST_ROWS, is_curve_sure=True)
            if median(self.last(FEWEST_ROWS)) < VERDICT_RATIO * math.exp(-noise):
                return now
        rows, num_spells = self._intermittent_rows()
        ratio = _mean_ratio(rows, but_worst=True)
        if num_spells < (FEWEST_LARGE_SPELLS if ratio < LARGE_RATIO else FEWEST_SPELLS):
            return None
        if ratio >= VERDICT_RATIO * math.exp(-self._chance(len(rows))):
            return None
        self.is_intermittent = True
        self.well_step = rows[0].first_step - 1
        return _mean_ratio(rows)

    def has_fewer(self, local_batch_size: int) -> bool:
        """Whether so much less than its newest row had, that less is known of what it can do."""
        before = self.rows[-1].loss.row.local_batch_size if self.rows else 0
        return local_batch_size * BUCKET_RATIO < before

    def found_slow_at_last(self) -> float | None:
        """Its speed ratio if its last rows are all bad, to be asked when it has lost samples.

        Then no row follows that could tell more. None: it was not slow, that could be chance, or
        too little is known of it.
        """
        newest = list(self.rows)[-NOW_ROWS:]
        if self.has_too_few_rows or not all(row.is_bad for row in newest):
            return None
        ratio = median(row.ratio for row in newest)
        return ratio if ratio < VERDICT_RATIO * math.exp(-self._chance(NOW_ROWS)) else None

    def _chance(self, num_rows: int, *, is_curve_sure: bool = False) -> float:
        """By how much so many rows may be bad by chance, as log ratio."""
        rows = list(self.rows)[-max(1, num_rows) :]
        newest = rows[-1].loss.row
        size, num_steps = newest.local_batch_size, newest.num_steps
        chance = self.best.chance_ratio(
            size, len(rows), num_steps, spread=self._spread(), is_curve_sure=is_curve_sure
        )
        return chance * (1 - sum(row.loss.is_held_back for row in rows) / len(rows))

    def _spread(self) -> float:
        """Robust standard deviation of the newest rows, as log ratio."""
        logs = [math.log(row.ratio) for row in self.rows]
        centre = median(logs)
        return MAD_TO_SIGMA * median(abs(log - centre) for log in logs)

    def _intermittent_rows(self) -> tuple[list[_Row], int]:
        """Rows from the first bad one on since it was last found well, and spells among them."""
        rows = list(self.rows)[-self.num_rows_well :] if self.num_rows_well else []
        begins = [i for i, (a, b) in enumerate(pairwise(rows), 1) if b.is_bad and not a.is_bad]
        return (rows[begins[0] :], len(begins)) if begins else ([], 0)

    def is_well_again(self) -> bool:
        """Whether that it was slow is over.

        Not by rows at a share of which so little is known that it may be as slow as before.
        """
        if self.num_told_rows < NOW_ROWS:
            return False
        if self.is_intermittent and any(row.is_bad for row in list(self.rows)[-QUIET_ROWS:]):
            return False
        newest = list(self.rows)[-VERDICT_ROWS:]
        sure = [row.ratio for row in newest if self._tells_that_it_is_well(row)]
        return len(sure) >= min(NOW_ROWS, len(newest)) and median(sure) >= HEALTHY_RATIO

    def _tells_that_it_is_well(self, row: _Row) -> bool:
        """Whether it would show in a row if it were as slow as was told: as it did, or is sure."""
        share = row.loss.row.local_batch_size
        if bucket(share) in self.slow_buckets:
            return True
        return not CERTAIN_ERRORS * self.best.error_ratio(share) > -math.log(self.told[1])

    def recover(self, step: int) -> int:
        """It is well again; since the step that this gives, the first of its newest good rows."""
        self.state = "healthy"
        self.slow_buckets.clear()
        self.well_step = since_step = step
        for row in reversed(list(self.rows)[-self.num_told_rows :]):
            if row.ratio < VERDICT_RATIO:
                break
            since_step = row.first_step
        return since_step

    def is_much_worse(self, ratio: float) -> bool:
        """Whether this is worth another word beside the speed that was told."""
        return ratio < (1 - CHANGED_RATIO) * self.told[1]

    def has_changed(self) -> bool:
        """Whether, for a whole window, cause or speed are other than what was told."""
        if self.num_told_rows < VERDICT_ROWS:
            return False
        told, ratio = self.told
        recent = self.last(VERDICT_ROWS)
        if max(recent) >= HEALTHY_RATIO:
            return False  # it may be on its way to be well
        if median(self.last(NOW_ROWS)) >= VERDICT_RATIO:
            return False  # not as slow as to be named
        if told and not self.causes():
            return False  # what was told is more than what is known now, as while shares move
        is_worse = self.is_much_worse(max(recent))
        is_better = min(recent) > (1 + CHANGED_RATIO) * ratio
        return is_worse or is_better or bool(self._lasting_causes() - set(told))


def _noise_seconds(expected_seconds: float) -> float:
    return min(NOISE_SECONDS, NOISE_RATIO * expected_seconds)


def _mean_ratio(rows: Sequence[_Row], *, but_worst: bool = False) -> float:
    """Expected / measured time of some rows; 1 of none.

    Args:
        rows: In order; the steps between them were as they should be.
        but_worst: Leave out the row in which most was lost: one accident is no habit.
    """
    taken = [row.loss.row.own_seconds * row.loss.row.num_steps for row in rows]
    wanted = [seconds * row.ratio for seconds, row in zip(taken, rows, strict=True)]
    between = sum(r.num_left_out * r.loss.row.own_seconds * r.ratio for r in rows)
    worst = max((a - b for a, b in zip(taken, wanted, strict=True)), default=0.0)
    measured = sum(taken) + between - (worst if but_worst else 0.0)
    return (sum(wanted) + between) / measured if measured > 0 else 1.0
