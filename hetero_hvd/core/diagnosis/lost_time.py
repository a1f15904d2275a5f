"""Where the time goes that a worker loses: each part of its step against what it usually takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_hvd.messages import Cause, StepTiming

PARTS: Mapping[Cause, tuple[str, ...]] = {
    "input": ("data_wait_seconds",),
    "transfer": ("transfer_seconds",),
    "compute": ("forward_seconds", "backward_seconds"),
    "optimizer": ("optimizer_seconds",),
    "script": ("other_seconds",),
}
"""What a worker's own time is made of; together they are all of it."""

STOPS: Mapping[Cause, str] = {
    "throttle": "throttled_seconds",
    "memory": "memory_stall_seconds",
    "garbage": "garbage_seconds",
    "contention": "contention_seconds",
}
"""What stops a worker, whichever part of its step it is in."""

STOPPED_RATIO: Mapping[Cause, float] = {
    "throttle": 0.8,
    "memory": 0.05,
    "garbage": 0.5,
    "contention": 0.8,
}
"""Part of the lost time that a stop must account for to be named, in this order. Waits for memory
are 0 on a healthy machine: the kernel counts waits for pages that it has just taken away, not its
own work of taking them nor other reads: 0.1 to 0.4 was measured. On a busy machine contention is a
part of whatever else takes long, so it is named only where it is nearly all of it."""

PER_STEP: tuple[Cause, ...] = ("optimizer", "script", "garbage")
"""What does not grow with a worker's share."""

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
    def parts(self) -> dict[Cause, float]:
        """By part, as a ratio to the expected time; together 1 / `speed_ratio` - 1."""
        lost = 1.0 / self.speed_ratio - 1.0
        found = {part: max(0.0, self.excess.get(part, 0.0)) for part in PARTS}
        total = sum(found.values())
        if lost <= 0 or not total > 0:
            return {"compute": lost}
        return {part: lost * seconds / total for part, seconds in found.items()}


@dataclass
class Usual:
    """What each part of a worker's step normally takes.

    Attributes:
        seconds: By part, stop or `processor`: per sample, or per step for those of `PER_STEP`.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    def learn(self, row: StepTiming) -> None:
        """A row of a healthy worker."""
        for name, value in _measured(row).items():
            each = value if name in PER_STEP else value / row.local_batch_size
            before = self.seconds.get(name, each)
            self.seconds[name] = before + SMOOTHING * (each - before)

    def of(self, name: str, row: StepTiming, default: float = math.nan) -> float:
        """What it should take in such a step."""
        if name not in self.seconds:
            return default
        return self.seconds[name] * (1 if name in PER_STEP else row.local_batch_size)

    def excess(self, row: StepTiming, expected_busy_seconds: float) -> dict[Cause, float]:
        """Seconds more than usual; `compute` takes what no other part of the busy time has."""
        found = _measured(row)
        excess: dict[Cause, float] = {
            name: found[name] - self.of(name, row, default=found[name])
            for name in (*PARTS, *STOPS)
            if name in found
        }
        others = sum(excess[name] for name in ("input", "transfer", "optimizer"))
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
    for stop, least in STOPPED_RATIO.items():
        if (ratio := excess.get(stop, 0.0) / lost) >= least:
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


def _measured(row: StepTiming) -> dict[str, float]:
    """Seconds of what was measured, by part and stop, and of its processor."""
    found: dict[str, float] = {
        part: sum(getattr(row, column) for column in columns) for part, columns in PARTS.items()
    }
    found |= {stop: getattr(row, column) for stop, column in STOPS.items()}
    found["processor"] = row.processor_seconds
    return {name: seconds for name, seconds in found.items() if math.isfinite(seconds)}
