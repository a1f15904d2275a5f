"""Where training is: all that the data order and the loops depend on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Position:
    """The place in the training run; equal on all workers after each step.

    Attributes:
        epoch: Epoch under way, 0-based.
        step_in_epoch: Steps of it that are applied.
        applied_steps: Steps applied since the start of training.
        loss: Mean loss over the global batch of the last applied step; NaN before the first.
        chunks: Which chunks of the epoch are done, with wait-free rounds; empty without.
        evaluations: Results of the evaluations since the last applied step, in order.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    applied_steps: int = 0
    loss: float = math.nan
    chunks: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def advance(self, loss: float) -> None:
        """One more step is applied."""
        self.step_in_epoch += 1
        self.applied_steps += 1
        self.loss = loss
        self.evaluations = []

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.step_in_epoch = 0
        self.chunks = {}
        self.evaluations = []

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over another worker's position."""
        for name, value in state.items():
            setattr(self, name, value)
