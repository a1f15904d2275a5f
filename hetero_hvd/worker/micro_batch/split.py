"""Cuts a collated batch into micro-batches, and moves it to the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hetero_hvd.errors import UserError

Loss = torch.Tensor | tuple[torch.Tensor, torch.Tensor | float]
"""Mean loss over a micro-batch's samples, or (mean loss, weight) if it is over something else."""


def to_device(batch: Any, device: torch.device) -> Any:  # noqa: ANN401 - whatever the loader yields
    """The batch with all that can be moved on `device`, asynchronously where memory is pinned."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # packed sequences, graphs, tokenised text
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def split(
    batch: Sequence[Any], *, num_samples: int, size: int
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Cut a batch along its samples.

    Tensors are cut along dimension 0 and lists of `num_samples` items along their length; tuples
    and mappings are cut item by item.

    Args:
        batch: What the loader yielded, as a sequence of arguments.
        num_samples: Samples in it, > 0.
        size: Samples in a micro-batch at most, > 0.

    Yields:
        Samples in the micro-batch, and the micro-batch.

    Raises:
        UserError: Part of the batch is something that cannot be cut along the samples.
    """
    if size >= num_samples:
        yield num_samples, batch
        return
    for start in range(0, num_samples, size):
        stop = min(start + size, num_samples)
        yield stop - start, tuple(_cut(item, start, stop, num_samples) for item in batch)


def _cut(item: Any, start: int, stop: int, num_samples: int) -> Any:  # noqa: ANN401
    if isinstance(item, torch.Tensor) and item.dim() and item.shape[0] == num_samples:
        return item[start:stop]
    if isinstance(item, Mapping):
        return {key: _cut(value, start, stop, num_samples) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_cut(value, start, stop, num_samples) for value in item))
    if (
        isinstance(item, list)
        and len(item) == num_samples
        and not batched_fields(item, num_samples)
    ):
        return item[start:stop]
    if isinstance(item, tuple | list):
        return type(item)(_cut(value, start, stop, num_samples) for value in item)
    if item is None or isinstance(item, bool | int | float | str):
        return item
    shape = tuple(item.shape) if isinstance(item, torch.Tensor) else type(item).__name__
    raise UserError(
        f"cannot cut this batch of {num_samples} samples into micro-batches: it holds {shape}; "
        "give tensors and lists with one entry per sample, or leave out micro_batch_size"
    )


def batched_fields(item: Sequence[Any], num_samples: int) -> bool:
    """Whether the list holds one batch per field, as opposed to one entry per sample."""
    tensors = [value for value in item if isinstance(value, torch.Tensor)]
    sized = [value for value in item if isinstance(value, list | tuple)]
    return (
        bool(tensors)
        and len(tensors) + len(sized) == len(item)
        and all(value.dim() > 0 for value in tensors)
        and all(len(value) == num_samples for value in (*tensors, *sized))
    )


def is_unpacked(given: tuple[Any, ...], handed_out: Any) -> bool | None:  # noqa: ANN401
    """Whether the arguments of a step are the items of the batch; False: it whole; None: neither.

    Args:
        given: The arguments.
        handed_out: The batch.
    """
    if len(given) == 1 and given[0] is handed_out:
        return False
    if isinstance(handed_out, tuple | list) and len(given) == len(handed_out):
        same = all(mine is theirs for mine, theirs in zip(given, handed_out, strict=True))
        return True if same else None
    return None


def own_memory(item: Any) -> Any:  # noqa: ANN401 - whatever the loader yields
    """A copy, aligned as any fresh tensor: kernels may treat another alignment differently."""
    if isinstance(item, torch.Tensor):
        return item.clone()
    if isinstance(item, dict):
        return {key: own_memory(value) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(own_memory, item))
    if isinstance(item, tuple | list):
        return type(item)(map(own_memory, item))
    return item


def kind_of(value: Any) -> str:  # noqa: ANN401 - what a user's function gave
    """A value in words, for messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def is_scalar(value: Any) -> bool:  # noqa: ANN401 - what a user's function gave
    """Whether it is one real number, in whatever form."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    if isinstance(value, np.ndarray | np.generic):
        return value.size == 1 and value.dtype.kind in "bfiu"
    return isinstance(value, int | float)


class LossParts(NamedTuple):
    """What a loss function tells of its samples.

    Attributes:
        mean: Their mean loss, a scalar.
        weight: Of that mean, >= 0.
        counted: Of something in the samples, added up over the step and all workers, >= 0.
    """

    mean: torch.Tensor
    weight: float
    counted: float = 0.0


def parts_of(loss: Any, *, num_samples: int) -> LossParts:  # noqa: ANN401
    """A loss as its mean, the weight of that, and what is counted along.

    Raises:
        UserError: The loss function gave something else; says what to do.
    """
    if isinstance(loss, LossParts):
        return loss
    is_pair = isinstance(loss, tuple) and len(loss) == 2 and not hasattr(loss, "_fields")  # noqa: PLR2004
    mean, weight = loss if is_pair else (loss, num_samples)
    if is_pair and isinstance(weight, torch.Tensor) and weight.requires_grad:
        raise UserError("the loss function returned (weight, loss): must be (mean loss, weight)")
    if not isinstance(mean, torch.Tensor):
        raise UserError(f"the loss function returned {kind_of(mean)}: {_instead_of(mean)}")
    if mean.dim():
        raise UserError(
            f"the loss has shape {tuple(mean.shape)}: must be a scalar, the mean over the samples "
            "(reduction='mean', or loss.mean())"
        )
    if mean.is_complex():
        raise UserError("the loss is complex: must be a real number, such as its .real or .abs()")
    if not is_scalar(weight) or not 0 <= float(weight) < math.inf:
        found = weight if is_scalar(weight) else kind_of(weight)
        raise UserError(f"the weight of a loss is {found}: must be >= 0, one number")
    if weight and not mean.requires_grad:
        raise UserError(
            "the loss has no gradient: compute it from the model's output, without torch.no_grad, "
            "detach, item or a model whose parameters are all frozen"
        )
    return LossParts(mean, float(weight))


def _instead_of(found: Any) -> str:  # noqa: ANN401 - what the loss function gave
    """What to return where this was returned."""
    if isinstance(getattr(found, "loss", None), torch.Tensor):  # as Hugging Face's models give
        return "return its .loss"
    if found is None:
        return "return the mean loss (is there a `return`?)"
    if isinstance(found, int | float | np.generic):
        return "return the tensor itself, not its .item()"
    if isinstance(found, Mapping):
        return "return the one tensor of it that is to be minimised"
    return "must be a scalar tensor, the mean over the samples, or (that, weight)"
