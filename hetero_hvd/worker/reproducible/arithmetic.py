"""A digest of what this machine makes of known numbers: machines that compute alike have the same.

An instruction set that all keep to is not all that a library's kernels depend on: some follow the
sizes of the caches, or the processor's vendor. So the kinds of operations that models are made of
are computed, forward and backward, on numbers that need no generator, and their bits compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetero_hvd.worker.data.seeding import own_course
from hetero_hvd.worker.step.other_optimizers import OwnUpdate


def digest(model: nn.Module) -> str:
    """Eight hexadecimal digits, in some 50 ms.

    Args:
        model: Recurrent layers are computed only if it has some, as they are not alike on machines
            on which all else is.
    """
    found = hashlib.sha256()
    with own_course(), torch.enable_grad():
        for result in _results(any(isinstance(m, nn.RNNBase) for m in model.modules())):
            found.update(result.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:8]


def _numbers(*shape: int) -> Tensor:
    """Numbers between -1/2 and 1/2 without any order, the same on every machine."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7919 % 1009).float().div_(1009).sub_(0.5).view(shape)


def _results(has_recurrent: bool) -> Iterator[Tensor]:
    with torch.device("cpu"):
        cases = [*_products(), *_convolutions(), *_functions()]
        if has_recurrent:
            cases += _recurrent()
        for function, inputs in cases:
            given = [number.requires_grad_() for number in inputs]
            result = function(*given)
            yield result
            yield from torch.autograd.grad(result.square().sum(), given)
        yield from _update()


Case = tuple[Callable[..., Tensor], list[Tensor]]


def _products() -> Iterator[Case]:
    for rows, inner, columns in ((16, 64, 32), (33, 257, 129), (128, 512, 256)):
        inputs = [_numbers(rows, inner), _numbers(columns, inner), _numbers(columns)]
        yield functional.linear, inputs
    yield torch.matmul, [_numbers(3, 17, 48), _numbers(3, 48, 33)]
    heads = [_numbers(2, 4, 33, 32) * scale for scale in (1.0, 0.7, 0.3)]
    yield lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), heads


def _convolutions() -> Iterator[Case]:
    image = _numbers(4, 16, 14, 14)
    yield lambda x, w: functional.conv2d(x, w, padding=1), [image, _numbers(32, 16, 3, 3)]
    yield lambda x, w: functional.conv2d(x, w, stride=2), [image.clone(), _numbers(24, 16, 1, 1)]
    depthwise = [image.clone(), _numbers(16, 1, 3, 3)]
    yield lambda x, w: functional.conv2d(x, w, padding=1, groups=16), depthwise
    yield functional.conv1d, [_numbers(4, 9, 40), _numbers(11, 9, 5)]
    yield lambda x: functional.adaptive_avg_pool2d(x, 3), [image.clone()]
    yield lambda x: functional.batch_norm(x, None, None, training=True), [image.clone()]


def _functions() -> Iterator[Case]:
    size = 33, 129
    for function in (
        lambda x: functional.layer_norm(x, (size[1],)),
        lambda x: functional.cross_entropy(x, torch.arange(size[0])),
        lambda x: functional.softmax(x, -1),
        lambda x: (x.abs() + 0.1).log() + (x.abs() + 0.1).sqrt() + (x.abs() + 0.1) ** 1.7,
        lambda x: functional.gelu(x) + functional.silu(x) + functional.elu(x),
        lambda x: x.exp() + x.tanh() + x.sigmoid() + x.sin() + x.cos() + x.erf(),
        lambda x: x.sum(0) + x.mean() + x.norm() + x.var(0) + x.cumsum(0)[-1],
        lambda x: functional.mse_loss(x, torch.zeros(size, dtype=torch.float32)),
    ):
        yield function, [_numbers(*size)]


def _recurrent() -> Iterator[Case]:
    for kind in (nn.LSTM, nn.GRU):
        layer = kind(24, 32, dtype=torch.float32)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(_numbers(*parameter.shape))
        yield lambda x, layer=layer: layer(x)[0], [_numbers(9, 4, 24)]


def _update() -> Iterator[Tensor]:
    parameter = nn.Parameter(_numbers(1000))
    optimizer = torch.optim.AdamW([parameter], lr=0.01)
    for _ in range(3):
        parameter.grad = parameter.detach() * 0.3
        with OwnUpdate():
            optimizer.step()
        yield parameter.clone()
