"""What a script for Horovod alone does with its gradients, within a worker of ours."""

from __future__ import annotations

import horovod.torch as hvd
import torch


def average_gradients(model: torch.nn.Module) -> None:
    """Average the gradients over all workers, in one reduction; Horovod has been started.

    Args:
        model: Its gradients are replaced by the mean of everybody's.
    """
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    hvd.grouped_allreduce_(gradients, average=True, name="gradients")
