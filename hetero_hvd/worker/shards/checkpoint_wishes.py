"""What workers with a state in parts tell each other of checkpoints, with the sums of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class CheckpointWishes:
    """The same on all workers once a step was reduced.

    Attributes:
        wants_one: Asked in each step: whether this worker wants a checkpoint after it.
        has_written: Asked in each step: whether this worker has written its part of the last one.
        is_wanted: Whether some worker wanted one in the step that was reduced last.
        num_written: Workers that had written their parts.
    """

    def __init__(self) -> None:
        self.wants_one: Callable[[], bool] = bool
        self.has_written: Callable[[], bool] = bool
        self.is_wanted = False
        self.num_written = 0

    def told(self) -> tuple[float, float]:
        """What this worker adds to the sums."""
        return float(self.wants_one()), float(self.has_written())

    def hear(self, sums: Sequence[float]) -> None:
        """What all have added."""
        self.is_wanted = sums[0] > 0
        self.num_written = round(sums[1])
