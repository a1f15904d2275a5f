"""An advice: what to do, why, what it brings at least and at most, and what is not known of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

Goal = Literal["speed", "money", "energy"]
Kind = Literal["placement", "limit", "memory", "recurring"]

WORTH_RATIO = 0.05
"""What brings less is not worth a person's time; who asks may want another bound."""

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
            return f"up to {last} {words}"
        return f"{first} {words}" if first == last else f"{first} to {last} {words}"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change.

    Attributes:
        kind: What it is about.
        what: What to do, as an imperative.
        evidence: What it stands on, in words with figures; never empty.
        gains: What it would change, what is gained first; empty: something else than speed, money
            or energy is at stake.
        command: A line for a shell that tries it, or shows more; empty: it is done in the script.
        unknown: What could make it wrong, in words.
    """

    kind: Kind
    what: str
    evidence: tuple[str, ...]
    gains: tuple[Gain, ...] = ()
    command: str = ""
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        gains = "; ".join(map(str, self.gains))
        return self.what + (f": {gains}" if gains else "")


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to be said.

    Attributes:
        advice: What brings most for certain first.
        not_judged: What could not be judged, and why.
    """

    advice: tuple[Advice, ...]
    not_judged: tuple[str, ...] = ()


def ranked(
    advice: Iterable[Advice], *, goal: Goal | None = None, worth_ratio: float = WORTH_RATIO
) -> tuple[Advice, ...]:
    """What is worth to be told, in the order of what it brings for certain, then of what it may.

    Args:
        advice: All that was found.
        goal: Only what brings something of this; None: of anything.
        worth_ratio: The least that an advice may bring, >= 0; one without figures always may.
    """
    told = []
    for each in advice:
        gains = [gain for gain in each.gains if goal in (None, gain.goal)]
        if each.gains and not any(gain.high >= worth_ratio for gain in gains):
            continue
        best = max(((gain.low, gain.high) for gain in gains), default=(math.inf, math.inf))
        told.append((best, each))
    told.sort(key=lambda pair: pair[0], reverse=True)
    return tuple(each for _, each in told)
