"""What follows the reduction: unscale, clip, and the optimizer's step; the same on all workers."""

from __future__ import annotations

import torch
from torch.nn import Parameter

from hetero_hvd.worker.options import StepOptions


class Update:
    """Applies reduced gradients.

    Args:
        optimizer: The user's.
        options: With scaler and clip.
        device: Where the model is.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, options: StepOptions, device: torch.device
    ) -> None:
        self._optimizer, self._options, self._device = optimizer, options, device

    def __call__(self, reduced: list[Parameter]) -> None:
        """Take the optimizer's step.

        Args:
            reduced: The parameters that have a gradient.
        """
        scaler, clip = self._options.scaler, self._options.clip
        if scaler is not None and not reduced:
            return  # nobody used anything; a scaler cannot step without a gradient
        if scaler is not None:
            scaler.scale(torch.zeros((), device=self._device))  # a worker without samples never did
            scaler.unscale_(self._optimizer)
        if clip is not None:
            clip(reduced)
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
