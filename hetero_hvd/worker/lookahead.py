"""Where the parameters will be when a gradient is applied: guessed with one's own gradients.

With steps under way, a gradient would be computed at parameters that are several updates old. So
each worker first takes those updates on trial, with what it has itself added to them, computes its
gradient there, and puts everything back to the last bit before the real updates are applied. One
worker alone guesses exactly, and trains as without staleness; many guess with the noise of their
own samples, as in local SGD.

Sources: weight prediction (Chen et al., Efficient and Robust Parallel DNN Training through Model
Parallelism on Multi-GPU Platform, 2018), local updates that hide the reduction (Shen et al., Faster
Distributed Deep Net Training: Computation and Communication Decoupled SGD, IJCAI 2019).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.worker.flight import Flight
from hetero_hvd.worker.update import Update


class Lookahead:
    """Keeps parameters and optimizer while trial updates are taken.

    Costs the memory of both once more, and a copy there and back in each step.

    Args:
        optimizer: The user's.
        update: Applies gradients with it.

    Attributes:
        is_ahead: Whether the parameters are trial ones.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, update: Update) -> None:
        self._optimizer, self._update = optimizer, update
        self._live: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []
        self._plain: dict[torch.Tensor, dict[str, Any]] = {}
        self.is_ahead = False

    def advance(self, flights: Sequence[Flight], parameters: Sequence[Parameter]) -> None:
        """Take the updates under way on trial.

        Args:
            flights: The steps under way, oldest first.
            parameters: Those that take part in reductions.
        """
        if not flights:
            return
        self._keep()
        for flight in flights:
            scale = flight.own_weight * flight.loss_scale
            factor = flight.part.global_samples / scale if scale else 0.0
            if factor and flight.own_loss_is_finite and flight.gradients.guess(factor):
                self._update.try_out(parameters)

    @torch.no_grad()
    def _keep(self) -> None:
        state = self._optimizer.state
        live = [p.detach() for group in self._optimizer.param_groups for p in group["params"]]
        self._plain = {}
        for parameter, values in state.items():
            live += [value for value in values.values() if isinstance(value, torch.Tensor)]
            self._plain[parameter] = {
                name: value if isinstance(value, torch.Tensor) else copy.deepcopy(value)
                for name, value in values.items()
            }
        alike = len(live) == len(self._kept) and all(
            a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
            for a, b in zip(live, self._kept, strict=True)
        )
        if not alike:
            self._kept = [torch.empty_like(tensor) for tensor in live]
        for kept, tensor in zip(self._kept, live, strict=True):
            kept.copy_(tensor)
        self._live = live
        self.is_ahead = True

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back to the last bit."""
        if not self.is_ahead:
            return
        for tensor, kept in zip(self._live, self._kept, strict=True):
            tensor.copy_(kept)
        state = self._optimizer.state
        for parameter in list(state):
            if parameter in self._plain:
                state[parameter].clear()
                state[parameter].update(self._plain[parameter])
            else:
                del state[parameter]
        self.is_ahead = False
