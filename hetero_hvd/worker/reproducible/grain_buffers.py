"""Running statistics that are the same however the grains are divided.

Every grain starts from the step's buffers; its change of them, weighted with its samples, is a
contribution to an order-free sum. So a running mean moves by the mean of the whole batch, and a
running variance towards the mean of the grains' variances, once a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.model.registered import ModelSlot
from hetero_hvd.worker.reduction.buffer_average import Kept


class GrainBuffers:
    """The buffers of a model during a step.

    Floating-point buffers of the model's state and counts of batches are summed up; no other buffer
    may change, but for caches, which are no part of that state and get another shape.
    """

    def __init__(self) -> None:
        self._summed: list[Kept] = []
        self._others: list[Kept] = []

    @property
    def names(self) -> list[str]:
        """Of the buffers that are summed up."""
        return [kept.place.name for kept in self._summed]

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self._summed)

    @property
    def sizes(self) -> list[int]:
        """Elements of each."""
        return [kept.before.numel() for kept in self._summed if kept.before is not None]

    def remember(self, places: Iterable[ModelSlot]) -> None:
        """A step begins: keep the buffers."""
        self._summed = []
        self._others = []
        for kept in map(Kept.of, places):
            (self._summed if _is_summed(kept) else self._others).append(kept)

    def restore(self) -> None:
        """Every grain starts from the step's buffers."""
        for kept in (*self._summed, *self._others):
            kept.restore()

    def drop(self) -> None:
        """The step is not applied: the same, and what the script writes from now on stays."""
        self.restore()
        self._summed = []
        self._others = []

    @torch.no_grad()
    def write_changes(self, views: Sequence[torch.Tensor], weight: float) -> None:
        """The changes that one grain made, times its weight.

        Raises:
            UserError: It changed a buffer that cannot be summed up.
        """
        for kept in self._others:
            if kept.has_changed():
                kind = "no floating-point" if kept.place.is_persistent else "no persistent"
                raise UserError(
                    f"reproducible: the forward pass changes the buffer {kept.place.name}, which "
                    f"is {kind} statistic: what it holds would depend on the division"
                )
        for view, kept in zip(views, self._summed, strict=True):
            now, before = kept.place.get(), kept.before
            if now is None or before is None or not kept.has_changed():
                view.zero_()
                continue
            if not bool(before.isfinite().all()):
                raise UserError(
                    f"reproducible: the buffer {kept.place.name} holds infinities or NaN, and the "
                    "forward pass changes it: give it numbers to start from"
                )
            view.view_as(before).copy_(now.double() - before.double()).mul_(weight)

    @torch.no_grad()
    def write_back(self, views: Sequence[torch.Tensor]) -> None:
        """Write what all grains together make of the buffers."""
        self.restore()
        for view, kept in zip(views, self._summed, strict=True):
            tensor, before = kept.tensor, kept.before
            if tensor is None or before is None or not bool(view.any()):
                continue
            after = before.double() + view.view_as(before).double()
            tensor.copy_(after if tensor.is_floating_point() else after.round())
        self._summed = []
        self._others = []


def _is_summed(kept: Kept) -> bool:
    before = kept.before
    if before is None or not before.numel() or not kept.place.is_persistent:
        return False
    return before.is_floating_point() or kept.place.name.endswith("num_batches_tracked")
