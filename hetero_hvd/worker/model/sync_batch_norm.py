"""Batch normalisation over the samples of all workers, exact for any shares, on CPU and GPU.

Each worker contributes (count, mean, mean of squares) of what it holds, weighted by its count, so
that statistics and gradients are those of the joined batch. (`torch.nn.SyncBatchNorm` needs
torch.distributed and GPUs, and deadlocks when a worker has no samples.)
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from hetero_hvd.worker.model.sync_batch_norm_rounds import SyncRounds, current_rounds


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - torch has no other name
    """Like `torch.nn.BatchNorm1d`, `2d` and `3d`; normalises over the micro-batches of all workers.

    In training inside `Trainer.step` with several workers: round by round over what the workers
    hold at the same time, which is the global batch where no worker needs several micro-batches.
    Everywhere else it is plain batch normalisation.
    """

    name = ""
    is_asked_for = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as in torch
        """Normalise.

        Args:
            input: Shape (samples, features, ...), any floating-point type.

        Returns:
            The same shape and type.
        """
        rounds = current_rounds()
        if not self.training or rounds is None:
            return super().forward(input)
        rounds.check_known(self, self.name)
        if not rounds.is_open:
            return super().forward(input)
        sums, number = rounds.forward_sums(self.name, _own_sums(input))
        self.is_asked_for = bool(input.requires_grad)
        self.sums_known(sums)
        count, mean, variance = _moments(sums, input)
        statistics, place = (mean, variance, self.eps, count), (rounds, self.name, number)
        normalise = cast("Any", _Normalise.apply)
        output: torch.Tensor = normalise(input, self.weight, self.bias, statistics, place)
        return output

    def sums_known(self, sums: torch.Tensor) -> None:
        """Move the running statistics; see `sync_rounds.RoundLayer`."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None  # noqa: S101 - the three come together
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        count, mean, variance = _moments(sums, self.running_mean)
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance * (count / max(1.0, count - 1.0)), factor)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - as in torch
        if input.dim() < 2:  # noqa: PLR2004 - samples and features
            raise ValueError(f"expected at least 2 dimensions, found {input.dim()}")


def convert_sync_batch_norm(model: nn.Module) -> nn.Module:
    """Make every batch normalisation of a model one over all workers.

    Args:
        model: Changed in place, but for a batch normalisation that is the model itself. Parameters,
            buffers and their names stay.

    Returns:
        The model.
    """
    if isinstance(model, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - torch has no other name
        layer = SyncBatchNorm(
            model.num_features,
            eps=model.eps,
            momentum=model.momentum,
            affine=model.affine,
            track_running_stats=model.track_running_stats,
        )
        layer._parameters = model._parameters  # noqa: SLF001 - the same objects, not copies
        layer._buffers = model._buffers  # noqa: SLF001
        return layer.train(model.training)
    for name, child in model.named_children():
        setattr(model, name, convert_sync_batch_norm(child))
    return model


def find_rounds(model: nn.Module) -> SyncRounds:
    """The rounds of a model's layers, which learn their names here."""
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, SyncBatchNorm)
    }
    for name, layer in layers.items():
        layer.name = name
    return SyncRounds(layers)


def _own_sums(x: torch.Tensor) -> torch.Tensor:
    """Count, whether a gradient will be asked for, sums and sums of squares by feature; float64."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    count = float(x.numel() // x.shape[1])
    variance, mean = torch.var_mean(wide, dim=_others(x), correction=0)
    mean, variance = mean.to("cpu", torch.float64), variance.to("cpu", torch.float64)
    head = torch.tensor([count, float(x.requires_grad)], dtype=torch.float64)
    return torch.cat([head, mean * count, (variance + mean * mean) * count])


def _moments(sums: torch.Tensor, like: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Count, mean and variance of all workers' samples, where and as precise as needed."""
    count = float(sums[0])
    total, squares = sums[2:].chunk(2)
    mean = total / count
    variance = (squares / count - mean * mean).clamp_min_(0.0)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return count, mean.to(like.device, dtype), variance.to(like.device, dtype)


def _others(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias; the sums of its gradient are global.

    dL/dx = w s (g - G / N - x' X / N) with s = 1 / sqrt(variance + eps), g = dL/dy, x' = (x - mean)
    s, and G, X the sums of g and of g x' over all N samples of all workers (Ioffe and Szegedy,
    2015). L is the sum of the workers' scaled losses, so nothing has to be weighted here.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - torch calls it so
        ctx: Any,  # noqa: ANN401 - torch's context takes any attribute
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: tuple[torch.Tensor, torch.Tensor, float, float],
        place: tuple[SyncRounds, str, int],
    ) -> torch.Tensor:
        mean, variance, eps, ctx.count = statistics
        ctx.place = place
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps))
        return batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        x, weight, mean, scale = ctx.saved_tensors
        shape = [1, -1, *[1] * (x.dim() - 2)]
        wide = gradient.to(mean.dtype)
        normal = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        own = torch.stack([wide.sum(_others(x)), (wide * normal).sum(_others(x))])
        of_x = None
        if ctx.needs_input_grad[0]:
            rounds, name, number = ctx.place
            sums = rounds.backward_sums(name, number, own.to("cpu", torch.float64).flatten())
            both = (sums / ctx.count).to(x.device, mean.dtype).view(2, *shape)
            of_x = (wide - both[0] - normal * both[1]) * scale.view(shape)
            if weight is not None:
                of_x = of_x * weight.view(shape)
            of_x = of_x.to(x.dtype)
        of_weight = own[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = own[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None, None
