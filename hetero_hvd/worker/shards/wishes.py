"""What workers with a state in parts tell each other with the sums of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

CHECKPOINT, WRITTEN, LEAVE = 1, 2, 4
"""What a worker may tell; together they are one number."""


class Wishes:
    """The same on all workers once a step was reduced.

    Attributes:
        wants_one: Asked in each step: whether this worker wants a checkpoint after it.
        has_written: Asked in each step: whether this worker has written its part of the last one.
        wants_to_leave: Asked in each step: whether this worker was asked to leave.
        is_wanted: Whether some worker wanted a checkpoint in the step that was reduced last.
        num_written: Workers that had written their parts.
        leaving: Ranks that want to leave after that step.
    """

    def __init__(self) -> None:
        self.wants_one: Callable[[], bool] = bool
        self.has_written: Callable[[], bool] = bool
        self.wants_to_leave: Callable[[], bool] = bool
        self.is_wanted = False
        self.num_written = 0
        self.leaving: set[int] = set()

    @property
    def own(self) -> float:
        """What this worker tells, in a number."""
        return float(
            CHECKPOINT * self.wants_one()
            + WRITTEN * self.has_written()
            + LEAVE * self.wants_to_leave()
        )

    def hear(self, told: Sequence[float]) -> None:
        """What all have told, in rank order."""
        words = [round(each) for each in told]
        self.is_wanted = any(word & CHECKPOINT for word in words)
        self.num_written = sum(bool(word & WRITTEN) for word in words)
        self.leaving = {rank for rank, word in enumerate(words) if word & LEAVE}
