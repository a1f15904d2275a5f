"""From reduced gradients to new parameters: unscale, clip, the user's optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.step.other_optimizers import OwnUpdate


class OptimizerUpdate:
    """What the script's optimizer, scaler and clipping do in each step.

    Args:
        optimizer: The user's.
        options: For scaler and clip.
        device: Where the model is.
        shards: The optimizer's state in parts; None: each worker has all of it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        options: StepOptions,
        device: torch.device,
        shards: ShardedOptimizer | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._device = device
        self._scaler = options.scaler
        self._clip = options.clip
        self._target: Any = shards or optimizer  # a scaler asks both for the same

    @property
    def loss_scale(self) -> float:
        """Factor of the gradients at this moment; 1 without a scaler."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def clear(self) -> None:
        """No gradients at all: only what was reduced may be applied."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def apply(self, parameters: Sequence[Parameter], lr_factor: float = 1.0) -> None:
        """One update; raises Interrupted where a state in parts meets the others, see there.

        Args:
            parameters: Only those with a gradient count.
            lr_factor: Of the learning rates, for this update only.
        """
        if lr_factor == 1.0:
            self._apply(parameters)
            return
        with self._scaled(lr_factor):
            self._apply(parameters)

    @contextmanager
    def _scaled(self, lr_factor: float) -> Iterator[None]:
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * lr_factor
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _apply(self, parameters: Sequence[Parameter]) -> None:
        used = [parameter for parameter in parameters if parameter.grad is not None]
        scaler = self._scaler
        if scaler is None:
            self.trial_update(used)
            return
        if not used:
            return  # nobody used anything; a scaler cannot step without a gradient
        with OwnUpdate():
            scaler.scale(torch.zeros((), device=self._device))  # a worker without samples never did
            scaler.unscale_(self._target)
            if self._clip is not None:
                self._clip(used)
            try:
                scaler.step(self._target)
            except Interrupted:  # others have ended this step: it forgets what it has found out
                scaler.update(scaler.get_scale())
                raise
            scaler.update()

    def trial_update(self, parameters: Sequence[Parameter]) -> None:
        """The same with gradients that are not scaled, and no change of the scale."""
        with OwnUpdate():
            if self._clip is not None:
                self._clip([parameter for parameter in parameters if parameter.grad is not None])
            self._target.step()
