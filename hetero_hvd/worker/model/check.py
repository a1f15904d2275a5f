"""What about a model and its optimizer would let the workers drift apart, or cannot be reduced."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from hetero_hvd.errors import UserError


class ModelCheck:
    """Refuses such things by name, at the start and whenever the script has changed the model.

    Args:
        model: The user's model.
        optimizer: The user's optimizer.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._former: set[int] = set()

    def run(self) -> None:
        """Look at all of it.

        Raises:
            UserError: There is such a thing.
        """
        self._check_layers()
        for name, parameter in self._model.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                raise UserError(
                    f"model.{name} has no shape yet: call the model once before the trainer"
                )
        self._check_optimizer()

    def _check_optimizer(self) -> None:
        """Also parameters that were the model's: an optimizer has no way to forget one."""
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise UserError(
                "optimizer LBFGS evaluates the loss several times a step: not supported"
            )
        known = self._former | {id(parameter) for parameter in self._model.parameters()}
        trained = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        if trained.isdisjoint(known):
            raise UserError(
                "the optimizer has none of the model's parameters: build it from this model, "
                f"{type(self._optimizer).__name__}(model.parameters(), ...)"
            )
        if not trained <= known:
            raise UserError(
                "the optimizer has parameters that are not the model's: give a model that holds "
                "them all, for example torch.nn.ModuleList([model, criterion])"
            )
        self._former = trained

    def _check_layers(self) -> None:
        for name, module in self._model.named_modules():
            if isinstance(module, torch.nn.SyncBatchNorm):
                raise UserError(
                    f"model.{name}: torch's SyncBatchNorm needs torch.distributed: use "
                    "hetero_hvd.convert_sync_batch_norm(model)"
                )
            if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
                continue
            if module.sparse:
                raise UserError(f"model.{name}: sparse gradients are not reduced: use sparse=False")
            if module.max_norm is not None:
                raise UserError(
                    f"model.{name}: max_norm writes into the weight in each forward pass, other "
                    "rows on each worker: normalise what the layer gives instead"
                )
