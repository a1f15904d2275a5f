"""Who has had how much: normalised device-seconds, which are forgotten by half-lives.

A user's weight is exp((mean - own) / tolerance) over the users who want devices now: smooth, so
that no one is served first or last from one instant to the next, and steep, so that nobody stays
behind by more than the tolerance times the logarithm of how much better the others' jobs are.
Exponential weights are those of multiplicative-weights scheduling (Arora, Hazan, Kale 2012); the
decay is Slurm's and Mesos's.

Entry penalty: who wants devices after a while without begins at the mean, as a flow enters at the
virtual time in start-time fair queueing (Goyal, Vin, Cheng 1996); a new name is no way to the
front.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

STEEPEST = 30.0
"""Weights are within e to this power: no number overflows."""


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """What a `FairShare` knows.

    Attributes:
        used: User to normalised device-seconds.
        at_seconds: User to the time at which they were so many.
        active: Users who want devices.
    """

    used: Mapping[str, float]
    at_seconds: Mapping[str, float]
    active: Sequence[str]


class FairShare:
    """The use of each user.

    Args:
        half_life_seconds: > 0.
    """

    def __init__(self, half_life_seconds: float) -> None:
        self._half_life = half_life_seconds
        self._used: dict[str, float] = {}
        self._at: dict[str, float] = {}
        self._active: frozenset[str] = frozenset()

    @property
    def facts(self) -> ShareFacts:
        """All of it, for the disk."""
        return ShareFacts(dict(self._used), dict(self._at), sorted(self._active))

    def put_back(self, facts: ShareFacts) -> None:
        """Go on from there."""
        self._used = dict(facts.used)
        self._at = dict(facts.at_seconds)
        self._active = frozenset(facts.active)

    def used(self, user: str, now_seconds: float) -> float:
        """Normalised device-seconds, decayed until now."""
        if user not in self._used:
            return 0.0
        age = max(0.0, now_seconds - self._at[user])
        return float(self._used[user] * 0.5 ** (age / self._half_life))

    def charge(self, speeds: Mapping[str, float], seconds: float, now_seconds: float) -> None:
        """Count what users have had until now.

        Args:
            speeds: User to the sum of relative speeds of the devices that the user's jobs had.
            seconds: For so long, >= 0.
            now_seconds: The end of that time.
        """
        for user, speed in speeds.items():
            self._used[user] = self.used(user, now_seconds) + speed * seconds
            self._at[user] = now_seconds

    def enter(self, users: Iterable[str], now_seconds: float) -> None:
        """Say who wants devices now; whoever did not before begins at the mean of those who did."""
        wanting = frozenset(users)
        if wanting == self._active:
            return
        before = self._active & wanting
        if before:
            mean = math.fsum(self.used(user, now_seconds) for user in before) / len(before)
            for user in wanting - self._active:
                self._used[user] = max(self.used(user, now_seconds), mean)
                self._at[user] = now_seconds
        self._active = wanting

    def weights(
        self, users: Collection[str], now_seconds: float, tolerance: float
    ) -> dict[str, float]:
        """User to weight, 1 at the mean.

        Args:
            users: Those who want devices now.
            now_seconds: For the decay.
            tolerance: Normalised device-seconds, > 0.
        """
        used = {user: self.used(user, now_seconds) for user in users}
        mean = math.fsum(used.values()) / max(1, len(used))
        return {
            user: math.exp(max(-STEEPEST, min(STEEPEST, (mean - had) / tolerance)))
            for user, had in used.items()
        }
