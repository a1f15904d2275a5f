"""How many steps to leave between two exchanges of timings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from hetero_hvd.messages import StepTiming

SETTLING_EXCHANGES = 10
"""Exchanges after each step that follow a join or a change, to learn and react fast."""

MAX_EXCHANGE_STEPS = 100


class ExchangePace:
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
