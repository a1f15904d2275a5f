"""What a user may say about the balancer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hetero_hvd.errors import ConfigError

CalibrateMode = Literal["auto", "never"]
"""Whether a user lets workers measure themselves before their first step."""

DEFAULT_RULE = "model"
"""Ours; the others are what it is measured against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    """How the global batch is divided."""

    balance: bool = True
    """Follow the measured speeds; else the same share for all."""

    rule: str = DEFAULT_RULE
    """Which of the `RULES` of `core.balance.policies` divides the batch."""

    baseline_steps: int = 0
    """First steps of the run with the same share for all, to compare with; >= 0."""

    min_gain_ratio: float = 0.005
    """Predicted part of the step time that a new plan must save, from 0 to 1."""

    exchange_seconds: float = 1.0
    """Time between two exchanges of timings once settled, > 0."""

    grain: int = 1
    """Samples that are never split between workers, >= 1."""

    calibrate: CalibrateMode = "never"
    """`auto`: workers of whom nothing is known measure themselves before their first step."""

    relative_speeds: Mapping[str, float] = field(default_factory=dict)
    """Hints per node for the first plan, > 0; a node without one counts as 1."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: With all that is wrong.
        """
        checks = [
            ("baseline_steps", self.baseline_steps, self.baseline_steps >= 0, ">= 0"),
            ("min_gain_ratio", self.min_gain_ratio, 0 <= self.min_gain_ratio <= 1, "from 0 to 1"),
            (
                "exchange_seconds",
                self.exchange_seconds,
                0 < self.exchange_seconds < math.inf,
                "> 0 and finite",
            ),
            ("grain", self.grain, self.grain >= 1, ">= 1"),
        ]
        checks += [
            (f"relative_speeds[{node}]", speed, 0 < speed < math.inf, "> 0 and finite")
            for node, speed in self.relative_speeds.items()
        ]
        wrong = [
            f"{name}={found}: must be {allowed}" for name, found, ok, allowed in checks if not ok
        ]
        if wrong:
            raise ConfigError(wrong)
