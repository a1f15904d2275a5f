"""Exact means over a whole set, from the parts that the workers computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from hetero_hvd.errors import UserError
from hetero_hvd.worker.loader import contiguous_batches
from hetero_hvd.worker.micro_batch import to_device

Means = Mapping[str, torch.Tensor | float]
Sums = dict[str, list[tuple[float, float]]]
"""Name to weighted value and weight of each batch, in order."""

Metrics = Means | tuple[Means, torch.Tensor | float]
"""Name to mean over a batch's samples, or (that, weight) where the mean is over something else."""


def evaluate_part(
    model: torch.nn.Module,
    metrics: Callable[..., Metrics],
    loader: DataLoader[Any],
    *,
    shares: Sequence[int],
    rank: int,
    device: torch.device,
    whole: bool = False,
) -> bytes:
    """One worker's weighted means, batch by batch, for `merge`.

    Args:
        model: Put into evaluation mode meanwhile.
        metrics: The user's function.
        loader: The set.
        shares: Relative shares in rank order.
        rank: Which part.
        device: Where the model is.
        whole: Whole batches only, so that the result does not depend on the shares.
    """
    sums: Sums = {}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for num_samples, batch in contiguous_batches(loader, shares, rank, whole=whole):
                moved = to_device(batch, device)
                found = metrics(*moved) if isinstance(moved, tuple | list) else metrics(moved)
                means, weight = found if isinstance(found, tuple) else (found, num_samples)
                _add(sums, means, float(weight))
    finally:
        model.train(was_training)
    return msgspec.msgpack.encode(sums)


def _add(sums: Sums, means: Means, weight: float) -> None:
    if not isinstance(means, Mapping):
        raise UserError(f"metrics returned {type(means).__name__}: must be a dict of name to mean")
    if weight == 0:  # a mean over nothing is NaN: it must not spoil the sum
        return
    for name, mean in means.items():
        sums.setdefault(name, []).append((float(mean) * weight, weight))


def merge(parts: Sequence[bytes]) -> dict[str, float]:
    """The means over the whole set; summed in the set's order, the same number on every worker."""
    sums: Sums = {}
    for part in parts:
        for name, batches in msgspec.msgpack.decode(part, type=Sums).items():
            sums.setdefault(name, []).extend(batches)
    return {
        name: sum(total for total, _ in batches) / sum(weight for _, weight in batches)
        for name, batches in sums.items()
    }
