"""Running statistics that are the same however the grains are divided.

Every grain starts from the step's buffers; its change of them, weighted with its samples, is a
contribution to an order-free sum. So a running mean moves by the mean of the whole batch, and a
running variance towards the mean of the grains' variances, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hetero_hvd.errors import UserError


class GrainBuffers:
    """The buffers of a model during a step.

    Args:
        model: Its floating-point buffers and counts of batches are summed up; no other buffer may
            change.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._summed = _summed(model)
        self._before: list[torch.Tensor] = []
        self._others: dict[str, tuple[int, int]] = {}

    @property
    def names(self) -> list[str]:
        """Of the buffers that are summed up."""
        return list(self._summed)

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self._summed)

    @property
    def sizes(self) -> list[int]:
        """Elements of each."""
        return [buffer.numel() for buffer in self._summed.values()]

    def remember(self) -> None:
        """A step begins: keep the buffers."""
        self._summed = _summed(self._model)
        self._before = [buffer.detach().clone() for buffer in self._summed.values()]
        self._others = self._versions()

    @torch.no_grad()
    def restore(self) -> None:
        """Every grain starts from the step's buffers."""
        for buffer, before in zip(self._summed.values(), self._before, strict=False):
            buffer.copy_(before)

    @torch.no_grad()
    def write_changes(self, views: Sequence[torch.Tensor], weight: float) -> None:
        """The changes that one grain made, times its weight.

        Raises:
            UserError: It changed a buffer that cannot be summed up.
        """
        found = self._versions() if self._others else {}
        for name, version in self._others.items():
            if found.get(name) != version:
                raise UserError(
                    f"reproducible: the forward pass changes the buffer {name}, which is no "
                    "floating-point statistic: what it holds would depend on the division"
                )
        for view, buffer, before in zip(views, self._summed.values(), self._before, strict=True):
            view.view_as(buffer).copy_(buffer.double() - before.double()).mul_(weight)

    @torch.no_grad()
    def publish(self, views: Sequence[torch.Tensor]) -> None:
        """Write what all grains together make of the buffers."""
        for view, buffer, before in zip(views, self._summed.values(), self._before, strict=True):
            after = before.double() + view.view_as(buffer).double()
            buffer.copy_(after if buffer.is_floating_point() else after.round())
        self._before = []

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Identity and count of changes of all other buffers."""
        return {
            name: (id(buffer), buffer._version)  # noqa: SLF001 - documented for custom functions
            for name, buffer in self._model.named_buffers()
            if name not in self._summed
        }


def _summed(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.numel() and (buffer.is_floating_point() or name.endswith("num_batches_tracked"))
    }
