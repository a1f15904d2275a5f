"""A script that takes its steps by `micro_batches`, `backward` and `apply`: each in its order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hetero_hvd.errors import UserError


class OwnLoop:
    """Refuses an order of calls with which the step would not be that of the batch."""

    def __init__(self) -> None:
        self._num_micro_batches = self._num_at_backward = 0
        self._rest: Iterator[Any] = iter(())

    def begin(self) -> None:
        """The script gets a batch."""
        self._num_micro_batches = self._num_at_backward = 0
        self._rest = iter(())

    def check_begun(self, batch: object) -> None:
        """Make sure that the script has a batch.

        Raises:
            UserError: It has none, or has used it.
        """
        if batch is None:
            raise UserError(
                "no step is under way: call trainer.step (or apply) once for each batch that "
                "trainer.batches() hands out"
            )

    def refuse(self, what: str) -> None:
        """Refuse what would begin a step that the script has begun by itself.

        Raises:
            UserError: It has.
        """
        if self._num_micro_batches:
            raise UserError(
                f"{what} was called for a batch that trainer.micro_batches has divided already: "
                "end that step with trainer.apply()"
            )

    def each(self, micro_batches: Iterable[Any]) -> Iterator[Any]:
        """The script gets the micro-batches of it."""
        self._rest = iter(micro_batches)
        for micro_batch in self._rest:
            self._num_micro_batches += 1
            yield micro_batch

    def backward(self) -> None:
        """The script gives a loss.

        Raises:
            UserError: It is not that of a micro-batch, or not the only one.
        """
        if not self._num_micro_batches:
            raise UserError(
                "trainer.backward was called without a micro-batch: loop over "
                "trainer.micro_batches(*batch), and call it once for each"
            )
        if self._num_at_backward == self._num_micro_batches:
            raise UserError(
                "trainer.backward was called twice for one micro-batch: add up its losses, and "
                "call it once"
            )
        self._num_at_backward = self._num_micro_batches

    def apply(self) -> None:
        """The script ends the step.

        Raises:
            UserError: It has given no loss, or not for all micro-batches.
        """
        if not self._num_at_backward:
            raise UserError(
                "trainer.apply was called before trainer.backward: give it the loss of each of "
                "trainer.micro_batches(*batch) first (loss.backward() reaches no other worker)"
            )
        if next(self._rest, None) is not None:
            raise UserError(
                f"trainer.apply was called after {self._num_micro_batches} of the micro-batches: "
                "run the loop over trainer.micro_batches(*batch) to its end"
            )
