"""Times of samples on the hub's clock, which never goes back, whatever wall clocks do.

A node's samples bear the time of its clock since boot, which nobody sets and which runs while the
machine sleeps. Questions and answers tell how far that is from the hub's, see `core.clock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MICROSECONDS = 1_000_000
MAX_TIME_SECONDS = 253_402_300_800
"""The end of the year 9999, the last one that dates are written of; of any clock, either way."""

MAX_AHEAD_MICROSECONDS = MICROSECONDS
"""A sample may be so far in the hub's future, as offsets are not exact."""


class ClockAnchor(NamedTuple):
    """What the hub's clock shows at a moment of its machine.

    Attributes:
        boot: Which start of the machine it was.
        at_seconds: Time since that boot.
        shows_seconds: The hub's clock then, seconds since 1970.
    """

    boot: str
    at_seconds: float
    shows_seconds: float

    def at(self, seconds: float) -> float:
        """What the hub's clock shows at a time since the same boot."""
        return self.shows_seconds + (seconds - self.at_seconds)


def new_anchor(
    earlier: ClockAnchor | None,
    *,
    boot: str,
    at_seconds: float,
    wall_seconds: float,
    newest_seconds: float,
) -> ClockAnchor:
    """The anchor of a hub that starts.

    It goes on where the one before it has been, so that neither its death nor a wall clock that was
    set back turns time back. A wall clock that is ahead is believed: then time has passed.

    Args:
        earlier: Of the hub before; None: there was none.
        boot: Of this machine, now.
        at_seconds: Time since boot.
        wall_seconds: The wall clock, seconds since 1970.
        newest_seconds: Of all that is stored, by the hub's clock.
    """
    shown = 0.0
    if earlier is not None:
        is_same = earlier.boot == boot
        shown = earlier.at(at_seconds) if is_same else earlier.shows_seconds
    return ClockAnchor(boot, at_seconds, max(shown, wall_seconds, newest_seconds))


class AlignedTimes(NamedTuple):
    """Times of a batch on the hub's clock.

    Attributes:
        microseconds: Of each sample, since 1970; each is later than the one before.
        num_ahead: So many would have been in the future, and bear the time of their arrival.
    """

    microseconds: list[int]
    num_ahead: int


def aligned(
    times_seconds: Sequence[float],
    offset_seconds: float,
    *,
    after_microseconds: int,
    now_microseconds: int,
) -> AlignedTimes:
    """Put samples on the hub's clock.

    Args:
        times_seconds: By the node's clock since boot.
        offset_seconds: What the hub's clock shows more.
        after_microseconds: Of the newest sample of the stream.
        now_microseconds: By the hub's clock.
    """
    found: list[int] = []
    num_ahead = 0
    for seconds in times_seconds:
        at = round((seconds + offset_seconds) * MICROSECONDS)
        if at > now_microseconds + MAX_AHEAD_MICROSECONDS:
            num_ahead += 1
            at = now_microseconds
        after_microseconds = max(at, after_microseconds + 1)
        found.append(after_microseconds)
    return AlignedTimes(found, num_ahead)
