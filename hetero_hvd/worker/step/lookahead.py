"""Where the parameters will be when a gradient is applied: predicted with one's own gradients.

With steps under way, a gradient would be computed at parameters that are several updates old. So
each worker first takes those updates on trial, with what it has itself added to them, computes its
gradient there, and puts everything back to the last bit before the real updates are applied. One
worker alone predicts exactly, and trains as without staleness; many predict with the noise of their
own samples, as in local SGD.

Sources: weight prediction (Chen et al., Efficient and Robust Parallel DNN Training through Model
Parallelism on Multi-GPU Platform, 2018), local updates that hide the reduction (Shen et al., Faster
Distributed Deep Net Training: Computation and Communication Decoupled SGD, IJCAI 2019).
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.worker.reduction.in_flight import InFlightStep
from hetero_hvd.worker.step.optimizer_update import OptimizerUpdate

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Where `torch.optim.Optimizer` keeps what a script has registered to be called with each step."""


class Lookahead:
    """Keeps parameters and optimizer while trial updates are taken.

    Costs the memory of both once more, and a copy there and back in each step. All counts that is
    in the optimizer's state, in its groups, or a plain number or flag of its own. Its step hooks
    are not called by trial updates: nobody could undo what they do elsewhere.

    Args:
        optimizer: The user's.
        update: Applies gradients with it.

    Attributes:
        is_ahead: Whether the parameters are trial ones.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, update: OptimizerUpdate) -> None:
        self._optimizer = optimizer
        self._update = update
        self._live: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []
        self._state: dict[Any, Any] = {}
        self._plain: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.is_ahead = False

    def advance(self, flights: Sequence[InFlightStep], parameters: Sequence[Parameter]) -> None:
        """Take the updates under way on trial.

        Args:
            flights: The steps under way, oldest first.
            parameters: Those that take part in reductions.
        """
        if not flights:
            return
        self._keep()
        with self._without_hooks():
            for flight in flights:
                own = flight.own
                scale = own.weight * own.loss_scale
                factor = own.part.global_samples / scale if scale else 0.0
                self._update.clear()
                if factor and own.is_finite and flight.gradients.predict(factor):
                    self._update.trial_update(parameters)

    @torch.no_grad()
    def _keep(self) -> None:
        optimizer = self._optimizer
        self._live = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self._state = dict(optimizer.state)
        own = {name: value for name, value in vars(optimizer).items() if _is_plain(value)}
        holders = [
            *optimizer.param_groups,
            *(v for v in self._state.values() if isinstance(v, dict)),
        ]
        self._plain = [(holder, self._copied(holder)) for holder in holders]
        self._plain.append((vars(optimizer), own))
        alike = len(self._live) == len(self._kept) and all(
            a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
            for a, b in zip(self._live, self._kept, strict=True)
        )
        if not alike:
            self._kept = [torch.empty_like(tensor) for tensor in self._live]
        for kept, tensor in zip(self._kept, self._live, strict=True):
            kept.copy_(tensor)
        self.is_ahead = True

    def _copied(self, holder: dict[str, Any]) -> dict[str, Any]:
        """The entries, of which tensors are kept apart, and those of `params` by their values."""
        entries = {}
        for name, value in holder.items():
            if isinstance(value, torch.Tensor):
                self._live.append(value.detach())
            is_kept = name == "params" or isinstance(value, torch.Tensor)
            entries[name] = value if is_kept else copy.deepcopy(value)
        return entries

    def restore(self) -> None:
        """Put everything back to the last bit."""
        if self.is_ahead:
            self._put_back()

    @torch.no_grad()
    def _put_back(self) -> None:
        for tensor, kept in zip(self._live, self._kept, strict=True):
            tensor.copy_(kept)
        state = self._optimizer.state
        state.clear()
        state.update(self._state)
        *holders, (attributes, own) = self._plain
        for holder, entries in holders:
            holder.clear()
            holder.update(entries)
        attributes.update(own)
        self.is_ahead = False

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        attributes = vars(self._optimizer)
        hooks = {name: attributes[name] for name in STEP_HOOKS if name in attributes}
        attributes.update({name: OrderedDict() for name in hooks})
        try:
            yield
        finally:
            attributes.update(hooks)


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str | None)
