"""Durations, times of day, amounts and names of nodes as people write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from hetero_hvd.core.digits import whole_number
from hetero_hvd.core.names import NODE
from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS
from hetero_hvd.errors import UserError

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d)")


def duration(flag: str, text: str) -> float:
    """Seconds of a text such as `500ms`; above 0.

    Raises:
        UserError: It is none.
    """
    seconds = _seconds(text)
    if not seconds:
        raise UserError(
            f"{flag}: found {text!r}, must be a time above 0 such as 500ms, 2s, 10m, 3h or 7d, and "
            "at most 8000 years"
        )
    return seconds


def shown_duration(seconds: float) -> str:
    """Such a text, of seconds above 0."""
    size, unit = max((size, unit) for unit, size in _UNITS.items() if size <= max(seconds, 1e-3))
    return f"{seconds / size:g}{unit}"


def _seconds(text: str) -> float | None:
    """Seconds of a text such as `500ms`; None: it is no such text, or out of all proportion."""
    found = _DURATION.fullmatch(text)
    seconds = float(found["number"]) * _UNITS[found["unit"]] if found else math.inf
    return seconds if seconds <= MAX_TIME_SECONDS else None


def names_of(flag: str, text: str) -> list[str]:
    """Names of nodes with commas between them.

    Raises:
        UserError: One is none.
    """
    names = text.split(",")
    for name in names:
        NODE.check(f"{flag}: found", name)
    return names


def positive(flag: str, text: str) -> int:
    """An integer above 0.

    Raises:
        UserError: It is none.
    """
    number = whole_number(text)
    if not number:
        raise UserError(f"{flag}: found {text!r}, must be an integer above 0")
    return number


_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def moment_of(flag: str, text: str, last_seconds: float) -> float:
    """Seconds since 1970 of a time; one of day, such as 14:05, is the last one up to a moment.

    Args:
        flag: For the message.
        text: As for `time_of`, or a time of day; in UTC where it has no zone.
        last_seconds: The moment, seconds since 1970; such as 10m are before it.

    Raises:
        UserError: It is no time.
    """
    if (of_day := _TIME_OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in of_day.groups())
        last = datetime.fromtimestamp(last_seconds, UTC)
        found = datetime.combine(last, time(hour, minute, second, tzinfo=UTC))
        return (found if found <= last else found - timedelta(days=1)).timestamp()
    found_seconds = time_of(flag, text, UTC)
    return found_seconds if found_seconds > 0 else last_seconds + found_seconds


def time_of(flag: str, text: str, zone: tzinfo | None = None) -> float:
    """Seconds since 1970, or as a negative number before now.

    Args:
        flag: For the message.
        text: A date and time, or a duration.
        zone: Of a date and time that names none; None: that of this machine.

    Raises:
        UserError: It is neither a time nor a duration.
    """
    if (before := _seconds(text)) is not None:
        return -before
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone)
        # What is not above 0 is relative to now; nothing is as old as a date before 1970.
        return max(found.timestamp(), 1e-6)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{flag}: found {text!r}, must be a date and time such as 2026-11-25T14:00, or so long "
            "before now, such as 10m"
        ) from error
