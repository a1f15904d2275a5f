"""Where the time goes that a worker loses: each part of its step against what it usually takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetero_hvd.messages import SLOW_BY, Cause, StepTiming

PARTS: Mapping[Cause, tuple[str, ...]] = {
    cause: slow.columns for cause, slow in SLOW_BY.items() if slow.columns
}
"""What a worker's own time is made of; together they are all of it."""

STOPS: Mapping[Cause, str] = {
    cause: slow.stops_by for cause, slow in SLOW_BY.items() if slow.stops_by
}
"""What stops a worker, whichever part of its step it is in."""

PER_STEP = frozenset(cause for cause, slow in SLOW_BY.items() if slow.is_per_step)
"""What does not grow with a worker's share."""

BESIDE_COMPUTE = tuple(cause for cause in PARTS if cause not in ("compute", "script"))
"""What the rest of a worker's busy time is made of."""

EXPLAINED_RATIO = 0.8
"""Part of the lost time that one cause, or two together, must account for to be named."""

SECOND_RATIO = 0.2
"""The smallest part that a second cause must account for."""

SMOOTHING = 0.3


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A row against what it should have been.

    Attributes:
        row: What was measured.
        speed_ratio: Speed / own speed, > 0.
        excess: Seconds more than usual, by part and stop.
        is_held_back: Whether a CPU quota explains what is lost.
    """

    row: StepTiming
    speed_ratio: float
    excess: Mapping[Cause, float]
    is_held_back: bool = False

    @property
    def expected_seconds(self) -> float:
        """What it should have been."""
        return self.row.own_seconds * self.speed_ratio

    @property
    def parts(self) -> dict[Cause, float]:
        """By part, as a ratio to the expected time; together 1 / `speed_ratio` - 1."""
        lost = 1.0 / self.speed_ratio - 1.0
        found = {part: max(0.0, self.excess.get(part, 0.0)) for part in PARTS}
        total = sum(found.values())
        if lost <= 0 or not total > 0:
            return {"compute": lost}
        return {part: lost * seconds / total for part, seconds in found.items()}

    def without(self, common: Mapping[Cause, float]) -> Loss:
        """What is its own, if it should have taken as much longer as all workers have.

        Args:
            common: Seconds that all lose alike, by part.
        """
        excess = {name: seconds - common.get(name, 0.0) for name, seconds in self.excess.items()}
        ratio = self.speed_ratio + sum(common.values()) / self.row.own_seconds
        return replace(self, excess=excess, speed_ratio=ratio)


@dataclass
class Usual:
    """What each part of a worker's step normally takes.

    Attributes:
        seconds: By part, stop or `processor`: per sample, or per step for what does not grow.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    def learn(self, row: StepTiming) -> None:
        """A row of a healthy worker."""
        for name, value in _measured(row).items():
            each = value / _size(name, row)
            before = self.seconds.get(name, each)
            self.seconds[name] = before + SMOOTHING * (each - before)

    def of(self, name: str, row: StepTiming, default: float = math.nan) -> float:
        """What it should take in such a step."""
        if name not in self.seconds:
            return default
        return self.seconds[name] * _size(name, row)

    def excess(self, row: StepTiming, expected_busy_seconds: float) -> dict[Cause, float]:
        """Seconds more than usual; `compute` takes what no other part of the busy time has.

        Of a worker that was never well it is not known what is usual: then all of the other parts
        may be too much, and `compute` is what is too much at the least.
        """
        found = _measured(row)
        excess: dict[Cause, float] = {
            name: found[name] - self.of(name, row, default=found[name] if self.seconds else 0.0)
            for name in (*PARTS, *STOPS)
            if name in found
        }
        others = sum(excess[name] for name in BESIDE_COMPUTE)
        excess["compute"] = row.busy_seconds - expected_busy_seconds - others
        throttled = excess.get("throttle", 0.0)
        if "contention" in excess:  # the kernel counts a quota's time there too
            excess["contention"] -= max(0.0, throttled)
        return excess


def causes_of(losses: Sequence[Loss]) -> dict[Cause, float]:
    """What accounts for the time lost in some rows.

    Returns:
        Cause to the part of the lost time that it accounts for, the largest first: one that
        accounts for nearly all, or two that do together; none if that is not so.
    """
    excess: dict[Cause, float] = {}
    for loss in losses:
        for name, seconds in loss.excess.items():
            excess[name] = excess.get(name, 0.0) + seconds
    parts = {name: max(0.0, excess.get(name, 0.0)) for name in PARTS}
    lost = max(
        sum(loss.row.own_seconds * max(0.0, 1.0 - loss.speed_ratio) for loss in losses),
        sum(parts.values()),
    )
    if not lost > 0:
        return {}
    for stop in STOPS:
        if (ratio := excess.get(stop, 0.0) / lost) >= SLOW_BY[stop].least_ratio:
            return {stop: min(1.0, ratio)}
    device = parts["compute"] + parts["optimizer"]
    if parts["compute"] >= parts["optimizer"] and device >= EXPLAINED_RATIO * lost:
        return {"compute": device / lost}  # a device that is slow is so in both
    first, second = sorted(parts, key=lambda name: parts[name], reverse=True)[:2]
    if parts[first] >= EXPLAINED_RATIO * lost:
        return {first: parts[first] / lost}
    both: dict[Cause, float] = {name: parts[name] / lost for name in (first, second)}
    is_second = both[second] >= SECOND_RATIO and sum(both.values()) >= EXPLAINED_RATIO
    return both if is_second else {}


def _size(name: str, row: StepTiming) -> int:
    """How many times in a row a part is paid for: for each sample, or once."""
    return 1 if name in PER_STEP else row.local_batch_size


def _measured(row: StepTiming) -> dict[str, float]:
    """Seconds of what was measured, by part and stop, and of its processor."""
    found: dict[str, float] = {
        part: sum(getattr(row, column) for column in columns) for part, columns in PARTS.items()
    }
    found |= {stop: getattr(row, column) for stop, column in STOPS.items()}
    found["processor"] = row.processor_seconds
    return {name: seconds for name, seconds in found.items() if math.isfinite(seconds)}
