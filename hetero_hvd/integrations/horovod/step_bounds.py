"""Which updates of which optimizer end a step, where a script has several optimizers."""

from __future__ import annotations

import weakref


class StepBounds:
    """Counts a round of all optimizers as one step, as of the two of an adversarial training.

    The first optimizer that is used ends steps, until another one is used twice without it. As all
    workers update in the same order, they count alike.
    """

    def __init__(self) -> None:
        self._ends: weakref.ref[object] | None = None
        self._others: weakref.WeakSet[object] = weakref.WeakSet()

    def ends_step(self, optimizer: object) -> bool:
        """An optimizer has made an update; whether that ends a step."""
        known = None if self._ends is None else self._ends()
        if known is not optimizer and known is not None and optimizer not in self._others:
            self._others.add(optimizer)
            return False
        self._ends = weakref.ref(optimizer)
        self._others.clear()
        return True
