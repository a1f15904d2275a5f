"""An advice: what to do, why, what it brings at least and at most, and what is not known of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

import msgspec

Goal = Literal["speed", "money", "energy"]
Kind = Literal["placement", "limit", "memory", "recurring", "idle"]

WORTH_RATIO, WORTH_SECONDS = 0.05, 600.0
"""What brings less than both is not worth a person's time; who asks may want other bounds."""

GAIN_ERROR = 0.05
"""An interval of a gain that is measured is wrong so often, and so never in more than 1 of 10."""

NOTHING = "nothing to gain, as far as it was measured"
"""What is told where there is no advice."""

_MORE = {"speed": "faster", "money": "cheaper per sample", "energy": "less energy per sample"}
_LESS = {"speed": "slower", "money": "dearer per sample", "energy": "more energy per sample"}


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What an advice would change, as an interval.

    Attributes:
        goal: Of what: samples per second, money or energy per sample.
        low: By which part at least; for speed of what it is now, for the others saved. Negative: a
            loss.
        high: By which part at most, >= low.
    """

    goal: Goal
    low: float
    high: float

    def __str__(self) -> str:
        words, ends = _MORE[self.goal], (self.low, self.high)
        if self.high < 0:
            words, ends = _LESS[self.goal], (-self.high, -self.low)
        first, last = (f"{ratio:.0%}" for ratio in ends)
        if ends[0] <= 0:
            loss = f"{abs(ends[0]):.0%}"
            lost = "up" if loss == "0%" else f"{loss} {_LESS[self.goal]}"
            return f"{lost} to {last} {words}"
        return f"{first} {words}" if first == last else f"{first} to {last} {words}"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change.

    Attributes:
        kind: What it is about.
        id: By which it is declined: the kind and what it is of, without figures; it stays the same
            when the same is found again. Empty: it cannot be declined.
        what: What to do, as an imperative.
        evidence: What it stands on, in words with figures; never empty.
        gains: What it would change, what is gained first; each interval is to hold what it brings
            in 9 of 10 cases at least. Empty: that is not known, which people are told, too.
        command: A line for a shell that tries it, or shows more; empty: it is done in the script.
        unknown: What could make it wrong, in words.
        idle_seconds: Of a device, in which it could do something else; 0: no such thing is said.
    """

    kind: Kind
    id: str = ""
    what: str
    evidence: tuple[str, ...]
    gains: tuple[Gain, ...] = ()
    command: str = ""
    unknown: tuple[str, ...] = ()
    idle_seconds: float = 0.0

    def __str__(self) -> str:
        gains = "; ".join(map(str, self.gains))
        return self.what + (f": {gains}" if gains else "")


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to be said.

    Attributes:
        advice: What brings most for certain first.
        not_judged: What could not be judged, and why.
        seen: What each machine and GPU does, in words.
        declined: `id` of what is not told, as somebody has declined it.
    """

    advice: tuple[Advice, ...]
    not_judged: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()

    def without(self, declined: Collection[str]) -> Advised:
        """The same without what was declined, which is only named."""
        left_out = tuple(each.id for each in self.advice if each.id and each.id in declined)
        told = tuple(each for each in self.advice if each.id not in left_out)
        return msgspec.structs.replace(self, advice=told, declined=left_out)


class Worth(NamedTuple):
    """What is told.

    Attributes:
        ratio: The least part that an advice may bring, >= 0.
        seconds: The least time in which a device could do something else, >= 0.
        goal: Only what brings something of this; None: of anything.
    """

    ratio: float = WORTH_RATIO
    seconds: float = WORTH_SECONDS
    goal: Goal | None = None


def ranked(advice: Iterable[Advice], worth: Worth = Worth()) -> tuple[Advice, ...]:  # noqa: B008
    """What is worth to be told, in the order of what it brings for certain, then of what it may.

    Args:
        advice: All that was found.
        worth: What is told of it; of an advice without figures all is. What may as well lose
            something of a goal is not told for that goal.
    """
    told = []
    for each in advice:
        gains = [gain for gain in each.gains if worth.goal in (None, gain.goal)]
        if each.gains and not any(gain.high >= worth.ratio and gain.low >= 0 for gain in gains):
            continue
        if 0 < each.idle_seconds < worth.seconds:
            continue
        best = max(((gain.low, gain.high) for gain in gains), default=(math.inf, math.inf))
        if each.idle_seconds:
            best = (0.0, 0.0)
        told.append(((*best, each.idle_seconds), each))
    told.sort(key=lambda pair: pair[0], reverse=True)
    return tuple(each for _, each in told)
