"""Samples that other programs send over HTTP: what they may be, and how much of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_hvd.core.recording.sequences import FIRST, MAX_NUMBER
from hetero_hvd.errors import UserError

UNITS = {
    "bytes": "_bytes",
    "bytes_per_second": "_bytes_per_second",
    "celsius": "_celsius",
    "count": "_total",
    "hertz": "_hertz",
    "joules": "_joules",
    "ratio": "_ratio",
    "seconds": "_seconds",
    "watts": "_watts",
}
"""Unit to how the name of a series in it ends, as metrics are named. No ending is the end of
another one, so a name is in one unit for ever, whoever sends it."""

MAX_FUTURE_SECONDS = 1.0
DAY_SECONDS = 86400.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_MAX_SHOWN = 100


def check_units(units: Mapping[str, str]) -> None:
    """Check the series that a batch declares.

    Args:
        units: Name of each series to its unit.

    Raises:
        UserError: A name or unit is none, or they do not fit; in one line.
    """
    for name, unit in units.items():
        shown = repr(name[:_MAX_SHOWN])
        if _NAME.fullmatch(name) is None:
            raise UserError(f"series {shown}: must be small letters, digits and '_', at most 100")
        if unit not in UNITS:
            there = ", ".join(UNITS)
            raise UserError(f"series {shown}: unit {unit[:_MAX_SHOWN]!r}, must be one of {there}")
        if not name.endswith(UNITS[unit]):
            raise UserError(
                f"series {shown}: is in {unit}, so its name must end in {UNITS[unit]}; or is it in "
                "another unit?"
            )
        if unit == "bytes" and name.endswith("_per_second_bytes"):
            raise UserError(f"series {shown}: a rate is in bytes_per_second")


def check_numbers(first: int, count: int) -> None:
    """Check the numbers of the samples of a batch.

    Args:
        first: Of the first one.
        count: How many there are, at least one.

    Raises:
        UserError: They are none; in one line.
    """
    last = first + count - 1
    if not FIRST <= first <= last <= MAX_NUMBER:
        raise UserError(
            f"`first`: samples with the numbers {first} to {last}, must be from {FIRST} to "
            f"{MAX_NUMBER}; number them from {FIRST} on, each by one more than the one before"
        )


def check_values(units: Mapping[str, str], values: Mapping[str, float]) -> None:
    """Check the values of one sample.

    Raises:
        UserError: One is of no series, or cannot be of its unit; in one line.
    """
    for name, value in values.items():
        shown = repr(name[:_MAX_SHOWN])
        if name not in units:
            raise UserError(f"series {shown}: has a value, but no unit: add it to `units`")
        if not math.isfinite(value):
            raise UserError(f"series {shown}: found {value}; leave out what is not known")
        if units[name] == "ratio" and not 0.0 <= value <= 1.0:
            raise UserError(f"series {shown}: found {value:g}, but a ratio is from 0 to 1")


def check_time(at_seconds: float, sent_at_seconds: float) -> None:
    """Check the time of one sample, by the clock of who sends it.

    Raises:
        UserError: It is later than the sending; in one line.
    """
    if not math.isfinite(at_seconds) or at_seconds > sent_at_seconds + MAX_FUTURE_SECONDS:
        raise UserError(
            f"a sample of {at_seconds - sent_at_seconds:g} s after it was sent: its time is in the "
            "future; give `at_unix_seconds` and `sent_at_unix_seconds` by the same clock"
        )


@dataclass(frozen=True, kw_only=True)
class IngestLimits:
    """What one source may send.

    Attributes:
        samples_per_second: Mean.
        bytes_per_second: Mean, of requests.
        burst_seconds: So much of both may come at once.
        bytes_per_day: Mean, of requests; so much may come at once, too.
        max_series: In all.
    """

    samples_per_second: float = 100.0
    bytes_per_second: float = 2.0**17
    burst_seconds: float = 60.0
    bytes_per_day: float = 2.0**30
    max_series: int = 1000


class _TokenBucket:
    """Holds so many seconds of an allowance, and fills with time."""

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._used_seconds = 0.0
        self._at_seconds = -math.inf

    def wait_seconds(self, cost_seconds: float, now_seconds: float) -> float:
        """How long until so much may be taken; 0: now."""
        used = max(0.0, self._used_seconds - (now_seconds - self._at_seconds))
        excess = used + cost_seconds - self._most_seconds
        return max(1.0, excess) if excess > 0 else 0.0

    def take(self, cost_seconds: float, now_seconds: float) -> None:
        """Take it."""
        used = max(0.0, self._used_seconds - (now_seconds - self._at_seconds))
        self._used_seconds = used + cost_seconds
        self._at_seconds = now_seconds


@dataclass
class IngestAllowance:
    """What one source may still send: in a short time, and in a day, so that it fills no disk.

    Attributes:
        limits: What it may.
        num_refused: Requests that were too much, or wrong.
        series: Those that it has sent, since the hub was started: `SOURCE/NAME`.
    """

    limits: IngestLimits
    num_refused: int = 0
    series: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._burst = _TokenBucket(self.limits.burst_seconds)
        self._day = _TokenBucket(DAY_SECONDS)

    def wait_seconds(self, num_samples: int, num_bytes: int, now_seconds: float) -> float:
        """How long it has to wait until it may send this; 0: it may, and has.

        Args:
            num_samples: Of a request.
            num_bytes: Of it.
            now_seconds: Monotonic.
        """
        limits = self.limits
        burst = max(num_samples / limits.samples_per_second, num_bytes / limits.bytes_per_second)
        costs = (
            (self._burst, burst),
            (self._day, DAY_SECONDS * num_bytes / limits.bytes_per_day),
        )
        wait = max(bucket.wait_seconds(cost, now_seconds) for bucket, cost in costs)
        if not wait:
            for bucket, cost in costs:
                bucket.take(cost, now_seconds)
        return wait
