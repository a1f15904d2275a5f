"""Cuts a collated batch into micro-batches, and moves it to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    if isinstance(item, list) and len(item) == num_samples and not _is_fields(item, num_samples):
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


def _is_fields(item: list[Any], num_samples: int) -> bool:
    """Whether the list holds one batched tensor per field, as opposed to one entry per sample."""
    return all(
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == num_samples
        for value in item
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


def mean_and_weight(loss: Loss, *, num_samples: int) -> tuple[torch.Tensor, float]:
    """A loss as its mean and the weight of that.

    Raises:
        UserError: It is not a scalar, or the weight is negative.
    """
    mean, weight = loss if isinstance(loss, tuple) else (loss, num_samples)
    if mean.dim():
        raise UserError(f"the loss has shape {tuple(mean.shape)}: must be a scalar, the mean")
    weight = float(weight)
    if weight < 0:
        raise UserError(f"the weight of a loss is {weight}: must be >= 0")
    return mean, weight
