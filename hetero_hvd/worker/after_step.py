"""What a script wants to be called for each applied step."""

from __future__ import annotations

from collections.abc import Callable

from hetero_hvd.core.data.grains import Stream, seed_of
from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.seeding import own_course


class AfterStep:
    """Calls the script's function with random numbers of its own, the same on every worker.

    Args:
        function: The script's; None: there is none.
        seed: The run's.

    Attributes:
        is_running: Whether it is being called.
    """

    def __init__(self, function: Callable[[], object] | None, seed: int) -> None:
        self._function = function
        self._seed = seed
        self.is_running = False

    def call(self, position: Position) -> None:
        """A step is applied; the position is that after it."""
        if self._function is None:
            return
        place = position.epoch, position.applied_steps
        self.is_running = True
        try:
            with own_course(seed_of(self._seed, *place, 0, Stream.AFTER_STEP)):
                self._function()
        finally:
            self.is_running = False

    def refuse(self, what: str) -> None:
        """Refuse what cannot be done in the function.

        Raises:
            UserError: It is being called.
        """
        if self.is_running:
            raise UserError(f"{what} was called in after_step: a step is being applied already")
