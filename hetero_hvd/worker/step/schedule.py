"""The script's learning-rate scheduler, which the trainer advances: on all workers alike."""

from __future__ import annotations

from typing import Literal

from torch.optim.lr_scheduler import LRScheduler

from hetero_hvd.errors import UserError


class Schedule:
    """Advances a scheduler, and sees whether the script does so as well.

    Args:
        scheduler: The script's; None: it has none.
        interval: `epoch` (after each) or `step` (after each optimizer step).

    Attributes:
        scheduler: As above.
    """

    def __init__(self, scheduler: LRScheduler | None, interval: Literal["epoch", "step"]) -> None:
        self.scheduler = scheduler
        self._interval = interval
        self._left_at: object = None

    def advance(self, interval: Literal["epoch", "step"]) -> None:
        """A step is applied, or an epoch is over.

        Raises:
            UserError: The schedule has come to its end before the training.
        """
        if self.scheduler is None or self._interval != interval:
            return
        try:
            self.scheduler.step()
        except ValueError as error:
            raise UserError(
                f"scheduler {type(self.scheduler).__name__}: {error}: make it as long as the "
                f"training is in {interval}s; where workers do not wait for each other nobody "
                "knows their number beforehand: take one without an end"
            ) from error

    def leave(self) -> None:
        """The script goes on."""
        self._left_at = getattr(self.scheduler, "last_epoch", None)

    def check(self) -> None:
        """The script has come back.

        Raises:
            UserError: It has advanced the scheduler meanwhile.
        """
        if getattr(self.scheduler, "last_epoch", None) != self._left_at:
            raise UserError(
                "the script has called the scheduler's step(): the trainer, which was given the "
                f"scheduler, does so after each {self._interval}; remove one of them"
            )
