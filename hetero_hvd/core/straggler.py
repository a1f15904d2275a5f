"""Who is slower than it should be, and why: judged against what the device itself can do.

Rules that compare workers with each other flag healthy slow cards. Here each worker is compared
with its own best curve, and what slows all of them alike is left out by dividing by the median.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from hetero_hvd.core.own_speed import OwnSpeed
from hetero_hvd.core.step_time import StepTimeEstimator
from hetero_hvd.messages import StepTiming, StragglerReported, WorkerId

ALARM_RATIO, VERDICT_RATIO, HEALTHY_RATIO = 0.8, 0.85, 0.95
"""Part of its own speed below which a worker is looked at, found slow, and found well again."""

SMOOTHING, VERDICT_ROWS, NOW_ROWS = 0.3, 8, 3
FEWEST_ROWS = 16
"""Before that only those are judged who were measured in an earlier job: too little is known of how
much a worker's steps vary."""

WINDOWS = (VERDICT_ROWS, 16, 32)
"""Rows whose median is judged; where steps vary much it takes more of them to be sure."""

EXPLAINED_RATIO = 0.8
"""Part of the lost time that one cause must account for to be named."""

MEMORY_RATIO = 0.05
"""The same for waits for memory: 0 on a healthy machine. The kernel counts waits for pages that it
has just taken away, not its own work of taking them nor other reads: 0.1 to 0.4 was measured."""

NOISE_SECONDS = 0.005
"""What a busy operating system costs a step now and then is no straggler's doing."""

USUAL_RATIO = 1.25
"""A worker that needs less than so many times the usual processor time is not slow itself."""

CHANGED_RATIO = 0.25
"""So much slower or faster than what was told of a straggler is worth another word."""

Cause = Literal["throttle", "memory", "input", "transfer", "compute", "unknown"]
PHASES: Mapping[str, tuple[str, ...]] = {
    "input": ("data_wait_seconds",),
    "transfer": ("transfer_seconds",),
    "compute": ("forward_seconds", "backward_seconds", "optimizer_seconds"),
}
COLUMNS = {
    "throttle": "throttled_seconds",
    "memory": "memory_stall_seconds",
    "processor": "processor_seconds",
}


class _Watched:
    """One worker: the best that it has shown, and its last rows."""

    def __init__(self) -> None:
        self.best = OwnSpeed()
        self.usual: dict[str, float] = {}
        self.granted = self.most_granted = 0.0
        self.is_held_back = False
        self.smooth = 1.0
        self.ratios: deque[float] = deque(maxlen=max(WINDOWS))
        self.explained: deque[bool] = deque(maxlen=max(WINDOWS))
        self.rows: deque[tuple[StepTiming, float]] = deque(maxlen=NOW_ROWS)
        self.well_step = -1
        self.told: tuple[Cause, float] = ("unknown", math.nan)
        self.num_told_rows = 0
        self.state: Literal["healthy", "slow", "incomplete"] = "healthy"

    def speed_ratio(self, row: StepTiming, estimator: StepTimeEstimator | None) -> float:
        """Expected / measured time; NaN where one of them is not known."""
        size, busy = row.local_batch_size, row.busy_seconds
        if size == 0 or row.num_steps == 0 or not busy > 0:
            return math.nan
        if estimator is not None:
            self.best.learn(estimator, size, busy_seconds=busy, speed_ratio=self.smooth)
        expected = self.best.expected_seconds(size)
        is_well = busy - expected <= NOISE_SECONDS
        by_curve = max(1.0, expected / busy) if is_well else expected / busy
        granted = self._granted_ratio(row, expected)
        self.is_held_back = math.isfinite(granted)
        if not self.is_held_back:
            return by_curve
        used, usual = row.processor_seconds, self.usual.get("processor", math.inf)
        return granted if used <= USUAL_RATIO * usual * size else min(granted, by_curve)

    def _granted_ratio(self, row: StepTiming, expected: float) -> float:
        """Processor time it gets / it ever got, where a CPU quota explains the time lost; else NaN.

        A quota lets a worker that often waits for others run as if there were none, until its
        share grows: it is not slow as long as it gets all that the quota ever gave it.
        """
        if not (self.most_granted and row.throttled_seconds > 0):
            return math.nan
        busy, entitled = row.busy_seconds, row.processor_seconds / self.most_granted
        lost = busy - min(expected, entitled)
        explains = row.throttled_seconds >= EXPLAINED_RATIO * lost > EXPLAINED_RATIO * NOISE_SECONDS
        return min(1.0, entitled / busy) if explains else math.nan

    def look(self, row: StepTiming) -> None:
        """What it gets of a processor."""
        if row.step_seconds > 0 and math.isfinite(row.processor_seconds):
            now = row.processor_seconds / row.step_seconds
            self.granted += SMOOTHING * (now - self.granted)
            self.most_granted = max(self.most_granted, self.granted)

    def learn(self, row: StepTiming) -> None:
        """A healthy row: what each part of a step normally takes per sample."""
        for name, seconds in _parts(row).items():
            per_sample = seconds / row.local_batch_size
            before = self.usual.get(name, per_sample)
            self.usual[name] = before + SMOOTHING * (per_sample - before)

    def cause(self) -> Cause:
        """What accounts for the time lost in the newest rows."""
        excess: dict[str, float] = dict.fromkeys((*PHASES, *COLUMNS), 0.0)
        missing = 0.0
        for row, ratio in self.rows:
            missing += row.busy_seconds * max(0.0, 1.0 - ratio)
            for name, seconds in _parts(row).items():
                excess[name] += seconds - self.usual.get(name, 0.0) * row.local_batch_size
        lost = max(missing, sum(max(0.0, excess[phase]) for phase in PHASES))
        if excess["throttle"] >= EXPLAINED_RATIO * lost > 0:
            return "throttle"
        if excess["memory"] >= MEMORY_RATIO * lost > 0:
            return "memory"
        causes: tuple[Cause, ...] = ("input", "transfer", "compute")
        for cause in causes:
            if self.usual and excess[cause] >= EXPLAINED_RATIO * lost > 0:
                return cause
        return "unknown"

    def take(self, row: StepTiming, ratio: float, step: int, *, is_usual: bool) -> None:
        """Keep a row; a healthy one is learnt from, unless it only looks so beside slow others."""
        self.ratios.append(ratio)
        self.explained.append(self.is_held_back)
        self.rows.append((row, ratio))
        self.smooth += SMOOTHING * (ratio - self.smooth)
        self.num_told_rows += 1
        if is_usual and ratio >= HEALTHY_RATIO:
            self.learn(row)
        if ratio >= VERDICT_RATIO and self.state != "slow":
            self.well_step = step

    def tell(self, worker: WorkerId, step: int) -> StragglerReported:
        """That it is slow, how slow and why."""
        cause, ratio = self.cause(), median(self.last(NOW_ROWS))
        self.told, self.num_told_rows = (cause, ratio), 0
        return StragglerReported(
            step=step,
            worker=worker,
            is_slow=True,
            speed_ratio=ratio,
            cause=cause,
            since_step=self.well_step + 1,
        )

    def last(self, num_rows: int) -> list[float]:
        """The newest ratios."""
        return list(self.ratios)[-num_rows:]

    def is_slow(self) -> bool:
        """Whether the median of a window is bad, and too bad for chance.

        Rows whose lost time the kernel's account of a quota explains are no matter of chance.
        """
        if len(self.ratios) < (NOW_ROWS if self.best.is_recalled else FEWEST_ROWS):
            return False
        row, _ = self.rows[-1]
        for num_rows in WINDOWS:
            found = self.last(num_rows)
            chance = self.best.chance_ratio(row.local_batch_size, len(found), row.num_steps)
            chance *= 1 - sum(list(self.explained)[-num_rows:]) / len(found)
            if median(found) < VERDICT_RATIO * math.exp(-chance):
                return True
        return False

    def has_changed(self) -> bool:
        """Whether, for a whole window, cause or speed are other than what was told."""
        if self.num_told_rows < VERDICT_ROWS:
            return False
        cause, ratio = self.told
        recent = self.last(VERDICT_ROWS)
        if max(recent) >= HEALTHY_RATIO:
            return False  # it may be on its way to be well
        is_worse = max(recent) < (1 - CHANGED_RATIO) * ratio
        is_better = min(recent) > (1 + CHANGED_RATIO) * ratio
        return is_worse or is_better or self.cause() not in (cause, "unknown")


class StragglerWatch:
    """Judges each table of timings; says something only when a worker's state changes."""

    def __init__(self) -> None:
        self._watched: dict[WorkerId, _Watched] = {}

    def recall(self, worker: WorkerId, curve: StepTimeEstimator, local_batch_size: int) -> None:
        """What an earlier job has learnt of a worker around this share; first of all."""
        self._watched.setdefault(worker, _Watched()).best.recall(curve, local_batch_size)

    def observe(
        self,
        workers: Sequence[WorkerId],
        rows: Sequence[StepTiming],
        curves: Mapping[WorkerId, StepTimeEstimator],
        *,
        step: int = -1,
    ) -> list[StragglerReported]:
        """Take the next table.

        Args:
            workers: Members in rank order.
            rows: Their timings.
            curves: What is known of them now; may lack some.
            step: Last step of the table.
        """
        ratios = {}
        for worker, row in zip(workers, rows, strict=True):
            watched = self._watched.setdefault(worker, _Watched())
            watched.look(row)
            ratios[worker] = watched.speed_ratio(row, curves.get(worker))
        known = [ratio for ratio in ratios.values() if math.isfinite(ratio)]
        common = median(known) if len(known) > 2 else 1.0  # noqa: PLR2004 - of two, one may be slow
        found = []
        for worker, row in zip(workers, rows, strict=True):
            verdict = self._judge(worker, row, ratios[worker], min(1.0, common), step)
            if verdict is not None:
                found.append(verdict)
        return found

    def _judge(
        self, worker: WorkerId, row: StepTiming, raw: float, common: float, step: int
    ) -> StragglerReported | None:
        watched, ratio = self._watched[worker], raw / common
        if not math.isfinite(ratio):
            is_missing = row.local_batch_size > 0 and row.num_steps > 0 and watched.best.is_known
            if is_missing and watched.state != "incomplete":
                watched.state = "incomplete"
                return _well(worker, step, math.nan)
            return None
        watched.take(row, ratio, step, is_usual=raw >= HEALTHY_RATIO)
        usual = median(watched.last(VERDICT_ROWS))
        if watched.state != "slow" and watched.smooth < ALARM_RATIO and watched.is_slow():
            watched.state = "slow"
            return watched.tell(worker, step)
        if watched.state != "healthy" and usual >= HEALTHY_RATIO:
            watched.state = "healthy"
            return _well(worker, step, usual)
        if watched.state == "slow" and watched.has_changed():
            return watched.tell(worker, step)
        return None


def _well(worker: WorkerId, step: int, speed_ratio: float) -> StragglerReported:
    return StragglerReported(
        step=step,
        worker=worker,
        is_slow=False,
        speed_ratio=speed_ratio,
        cause=None,
        since_step=step,
    )


def _parts(row: StepTiming) -> dict[str, float]:
    """Seconds of what was measured, by cause."""
    phases = {
        cause: sum(getattr(row, phase) for phase in phases if math.isfinite(getattr(row, phase)))
        for cause, phases in PHASES.items()
    }
    columns = {name: getattr(row, column) for name, column in COLUMNS.items()}
    return phases | {name: value for name, value in columns.items() if math.isfinite(value)}
