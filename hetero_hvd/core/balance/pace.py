"""How many steps to leave between two exchanges of timings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from hetero_hvd.messages import StepTiming

SETTLING_EXCHANGES = 10
"""Exchanges after each step that follow a join or a change, to learn and react fast."""

HURRIED_STEPS = 4
"""Steps with an exchange each after a worker saw itself change: enough to be sure of it."""

MAX_EXCHANGE_STEPS = 100


class ExchangeInterval:
    """Every step while things change, then about once in `exchange_seconds`."""

    def __init__(self, exchange_seconds: float) -> None:
        self._exchange_seconds = exchange_seconds
        self._left = SETTLING_EXCHANGES
        self._step_seconds: deque[float] = deque(maxlen=9)

    def disturb(self) -> None:
        """Something has changed: exchange after each step for a while."""
        self._left = SETTLING_EXCHANGES

    def observe(self, timings: Sequence[StepTiming]) -> None:
        """Take the next table."""
        self._left = max(0, self._left - 1)
        measured = [
            t.step_seconds for t in timings if t.num_steps and math.isfinite(t.step_seconds)
        ]
        if measured:
            self._step_seconds.append(median(measured))

    def exchange_steps(self, current: int) -> int:
        """Steps between exchanges from now on; `current` unless another number is much better."""
        if self._left or not self._step_seconds:
            return 1
        ideal = self._exchange_seconds / max(median(self._step_seconds), 1e-6)
        steps = max(1, min(round(ideal), MAX_EXCHANGE_STEPS))
        return current if steps / 2 < current < steps * 2 else steps


class SpeedChangeDetector:
    """Tells from a worker's own steps that its speed has changed, before any exchange does.

    The reference is a running mean of the busy time at the share in force; a step that is off by
    more than `CHANGE_RATIO` and four mean deviations is worth an exchange at once if it is long
    enough; of short steps several in a row are, as an exchange costs each worker some milliseconds.
    It may be a mere spike: the balancer decides. After one more on the same side the new level is
    the reference.
    """

    CHANGE_RATIO, DEVIATIONS, WEIGHT, FEWEST = 0.15, 4.0, 0.1, 4
    SHORTEST_SECONDS = 0.05

    def __init__(self) -> None:
        self._share = -1
        self._num = 0
        self._mean = 0.0
        self._deviation = 0.0
        self._side = self._off_seconds = 0.0

    def observe(self, share: int, busy_seconds: float) -> bool:
        """Take one step; whether its speed is another one than before."""
        if share != self._share:
            self._restart(share)
        if share == 0 or not busy_seconds > 0:
            return False
        if self._num < self.FEWEST:
            self._num += 1
            self._mean += (busy_seconds - self._mean) / self._num
            self._deviation = max(self._deviation, abs(busy_seconds - self._mean))
            return False
        error = busy_seconds - self._mean
        bound = max(self.CHANGE_RATIO * self._mean, self.DEVIATIONS * self._deviation)
        side = math.copysign(1.0, error) if abs(error) > bound else 0.0
        if not side:
            self._mean += self.WEIGHT * error
            self._deviation += self.WEIGHT * (abs(error) - self._deviation)
        before_seconds = self._off_seconds if side == self._side else 0.0
        self._side = side
        self._off_seconds = before_seconds + self._mean if side else 0.0
        if side and before_seconds >= self.SHORTEST_SECONDS:
            self._restart(share)
            return True
        return self._off_seconds >= self.SHORTEST_SECONDS

    def _restart(self, share: int) -> None:
        self._share = share
        self._num = 0
        self._mean = 0.0
        self._deviation = 0.0
        self._side = self._off_seconds = 0.0
