"""Who is slower than it should be, and why: judged against what the device itself can do.

Rules that compare workers with each other flag healthy slow cards. Here each worker is compared
with its own best curve, and what slows all of them alike is left out by dividing by the median.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hetero_hvd.core.step_time import StepTimeModel
from hetero_hvd.messages import StepTiming, WorkerId

ALARM_RATIO, VERDICT_RATIO, HEALTHY_RATIO = 0.8, 0.85, 0.95
"""Part of its own speed below which a worker is looked at, found slow, and found well again."""

SMOOTHING, VERDICT_ROWS, NOW_ROWS = 0.3, 8, 3
EXPLAINED_RATIO = 0.8
"""Part of the lost time that one cause must account for to be named."""

NOISE_SECONDS = 0.005
"""What a busy operating system costs a step now and then is no straggler's doing."""

FASTER_RATIO = 0.98
"""A curve replaces the best one if it is faster by this."""

Cause = Literal["throttle", "input", "transfer", "compute", "unknown"]
PHASES: Mapping[str, tuple[str, ...]] = {
    "input": ("data_wait_seconds",),
    "transfer": ("transfer_seconds",),
    "compute": ("forward_seconds", "backward_seconds", "optimizer_seconds"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A worker's state has changed.

    Attributes:
        worker: Who.
        is_slow: Whether it is a straggler from now on; else it is well again, or INCOMPLETE.
        speed_ratio: Its speed / what it should be, relative to the median worker; NaN: unmeasured.
        cause: What accounts for most of the lost time, if one thing does.
    """

    worker: WorkerId
    is_slow: bool
    speed_ratio: float
    cause: Cause | None = None

    def __str__(self) -> str:
        if not math.isfinite(self.speed_ratio):
            return f"{self.worker}: INCOMPLETE, its timings are missing"
        if not self.is_slow:
            return f"{self.worker} is as fast as it should be again"
        return f"{self.worker} is slow: {self.speed_ratio:.2f} of its own speed ({self.cause})"


class _Watched:
    """One worker: the best that it has shown, and its last rows."""

    def __init__(self) -> None:
        self.best: StepTimeModel | None = None
        self.parts: dict[str, float] = {}
        self.throttled = 0.0
        self.smooth = 1.0
        self.ratios: deque[float] = deque(maxlen=VERDICT_ROWS)
        self.state: Literal["healthy", "slow", "incomplete"] = "healthy"

    def speed_ratio(self, row: StepTiming, model: StepTimeModel | None) -> float:
        """Expected / measured time; NaN where one of them is not known."""
        size, busy = row.local_batch_size, row.busy_seconds
        if size == 0 or row.num_steps == 0 or not busy > 0:
            return math.nan
        if model is not None:
            now = model.step_seconds(size)
            if self.best is None or now < FASTER_RATIO * self.best.step_seconds(size):
                self.best = model
        if self.best is None:
            return math.nan
        expected = self.best.step_seconds(size)
        return expected / busy if busy - expected > NOISE_SECONDS else max(1.0, expected / busy)

    def learn(self, row: StepTiming) -> None:
        """A healthy row: what each part of a step normally takes per sample."""
        for cause, seconds in _parts(row).items():
            per_sample = seconds / row.local_batch_size
            before = self.parts.get(cause, per_sample)
            self.parts[cause] = before + SMOOTHING * (per_sample - before)
        if math.isfinite(row.throttled_seconds):
            per_sample = row.throttled_seconds / row.local_batch_size
            self.throttled += SMOOTHING * (per_sample - self.throttled)

    def cause(self, row: StepTiming) -> Cause:
        """What accounts for the lost time."""
        size = row.local_batch_size
        excess = {c: s - self.parts.get(c, 0.0) * size for c, s in _parts(row).items()}
        lost = sum(max(0.0, seconds) for seconds in excess.values())
        if row.throttled_seconds - self.throttled * size >= EXPLAINED_RATIO * lost > 0:
            return "throttle"
        causes: tuple[Cause, ...] = ("input", "transfer", "compute")
        for cause in causes:
            if self.parts and excess[cause] >= EXPLAINED_RATIO * lost > 0:
                return cause
        return "unknown"


class StragglerWatch:
    """Judges each table of timings; says something only when a worker's state changes."""

    def __init__(self) -> None:
        self._watched: dict[WorkerId, _Watched] = {}

    def observe(
        self,
        workers: Sequence[WorkerId],
        rows: Sequence[StepTiming],
        models: Mapping[WorkerId, StepTimeModel],
    ) -> list[Verdict]:
        """Take the next table.

        Args:
            workers: Members in rank order.
            rows: Their timings.
            models: What is known of them now, or was in earlier jobs; may lack some.
        """
        ratios = {}
        for worker, row in zip(workers, rows, strict=True):
            watched = self._watched.setdefault(worker, _Watched())
            ratios[worker] = watched.speed_ratio(row, models.get(worker))
        known = [ratio for ratio in ratios.values() if math.isfinite(ratio)]
        common = median(known) if len(known) > 2 else 1.0  # noqa: PLR2004 - of two, one may be slow
        found = []
        for worker, row in zip(workers, rows, strict=True):
            verdict = self._judge(worker, row, ratios[worker] / min(1.0, common))
            if verdict is not None:
                found.append(verdict)
        return found

    def _judge(self, worker: WorkerId, row: StepTiming, ratio: float) -> Verdict | None:
        watched = self._watched[worker]
        if not math.isfinite(ratio):
            is_missing = row.local_batch_size > 0 and row.num_steps > 0 and watched.best is not None
            if is_missing and watched.state != "incomplete":
                watched.state = "incomplete"
                return Verdict(worker=worker, is_slow=False, speed_ratio=math.nan)
            return None
        watched.ratios.append(ratio)
        watched.smooth += SMOOTHING * (ratio - watched.smooth)
        if ratio >= HEALTHY_RATIO:
            watched.learn(row)
        usual = median(watched.ratios)
        if watched.state != "slow" and watched.smooth < ALARM_RATIO and usual < VERDICT_RATIO:
            watched.state = "slow"
            cause = watched.cause(row)
            now = median(list(watched.ratios)[-NOW_ROWS:])
            return Verdict(worker=worker, is_slow=True, speed_ratio=now, cause=cause)
        if watched.state != "healthy" and usual >= HEALTHY_RATIO:
            watched.state = "healthy"
            return Verdict(worker=worker, is_slow=False, speed_ratio=usual)
        return None


def communication_ratio(rows: Sequence[StepTiming]) -> float:
    """Part of a step that reduction itself takes: what even the last worker to be ready waits.

    NaN if nothing was measured.
    """
    waits = [
        row.comm_wait_seconds / row.step_seconds
        for row in rows
        if row.local_batch_size and row.num_steps and row.step_seconds > 0
    ]
    return min(waits, default=math.nan)


def _parts(row: StepTiming) -> dict[str, float]:
    return {
        cause: sum(getattr(row, phase) for phase in phases if math.isfinite(getattr(row, phase)))
        for cause, phases in PHASES.items()
    }
