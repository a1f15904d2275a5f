"""The grains of a worker's part of a step: one batch to look at, but computed one by one.

Each grain is collated by itself, so that a `collate_fn` that pads or mixes sees the same samples
whoever holds the grain. The script is handed one batch, as without grains; what it gives back is
looked up here, so that the grains themselves go to its loss function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.micro_batch.split import batched_fields

PLAIN = bool | int | float | str | bytes | None


class Grains(tuple[Any, ...]):
    """What grains hold in one place of the batch, where it cannot be put together: one of each."""

    __slots__ = ()


class GrainBatch:
    """The collated grains of one worker's part of a step.

    Args:
        grains: What the user's `collate_fn` made of each, in order; at least one.
        sizes: Samples in each.

    Attributes:
        sizes: As above.
        joined: All of them as one batch of the same structure: tensors joined along dimension 0,
            lists with an entry for each sample along their length, `Grains` where that is not
            possible.
    """

    def __init__(self, grains: Sequence[Any], sizes: Sequence[int]) -> None:
        self._grains = grains
        self.sizes = sizes
        self._known: dict[int, Sequence[Any]] = {}
        self.joined = self._join(grains)

    def pieces(self, batch: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """What to call the loss function with, for each grain.

        Args:
            batch: What the script gave: the joined batch, parts of it, or collections of parts.

        Raises:
            UserError: A tensor or array is not part of the batch.
        """
        for index in range(len(self._grains)):
            yield tuple(self._piece(item, index) for item in batch)

    def _piece(self, item: Any, index: int) -> Any:  # noqa: ANN401 - whatever the loader yields
        if id(item) in self._known:
            return self._known[id(item)][index]
        if isinstance(item, torch.Tensor | np.ndarray) and item.ndim:
            raise UserError(
                f"reproducible: step got a tensor of shape {tuple(item.shape)} that "
                "trainer.batches() did not hand out: change the batch in the loss function, which "
                "sees each grain by itself"
            )
        if isinstance(item, list | tuple | dict):
            return _mapped(item, lambda value: self._piece(value, index))
        return item

    def _join(self, parts: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the loader yields
        first = parts[0]
        if isinstance(first, PLAIN) and all(part == first for part in parts):
            return first
        if any(type(part) is not type(first) for part in parts):
            joined: Any = Grains(parts)
        elif isinstance(first, torch.Tensor | np.ndarray):
            joined = self._join_arrays(parts)
        elif isinstance(first, Mapping | list | tuple):
            joined = self._join_collections(parts)
        else:
            joined = first if len(parts) == 1 else Grains(parts)
        self._known[id(joined)] = parts
        return joined

    def _join_arrays(self, parts: Sequence[Any]) -> Any:  # noqa: ANN401 - a tensor or an array
        first = parts[0]
        if len(parts) == 1:
            return first
        if not first.ndim or len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
            return Grains(parts)
        if isinstance(first, np.ndarray):
            return np.concatenate(parts)
        is_dense = all(part.layout is torch.strided for part in parts)
        return torch.cat(list(parts)) if is_dense else Grains(parts)

    def _join_collections(self, parts: Sequence[Any]) -> Any:  # noqa: ANN401 - or `Grains`
        first = parts[0]
        if isinstance(first, Mapping):
            if any(part.keys() != first.keys() for part in parts):
                return Grains(parts)
            return {key: self._join([part[key] for part in parts]) for key in first}
        lengths = [len(part) for part in parts]
        is_fields = batched_fields(first, self.sizes[0])
        if isinstance(first, list) and lengths == list(self.sizes) and not is_fields:
            return [item for part in parts for item in part]
        if len(set(lengths)) > 1:
            return Grains(parts)
        items = [self._join(of_each) for of_each in zip(*parts, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)


def _mapped(item: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - a collection
    if isinstance(item, dict):
        return {key: change(value) for key, value in item.items()}
    values = map(change, item)
    return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
