"""How the samples of a batch become a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data as torch_data

Collate = Callable[[Any], Any]


def fetching(dataset: Any, collate: Collate) -> tuple[Any, Collate]:  # noqa: ANN401 - a dataset
    """The dataset and the `collate_fn` for a DataLoader whose batches may be empty: then None.

    The rows of a plain `TensorDataset`, or of a part of one, are taken at once: the same batch as
    from one sample after the other, for 128 samples in a hundredth of the time, for which every
    step waits.
    """
    if collate is torch_data.default_collate:
        if type(dataset) is torch_data.TensorDataset:
            return TensorRows(*dataset.tensors), AsItIs()
        if type(dataset) is torch_data.Subset:  # as `random_split` gives it
            rows, of_rows = fetching(dataset.dataset, collate)
            if isinstance(of_rows, AsItIs):
                return torch_data.Subset(rows, dataset.indices), of_rows
    return dataset, CollateOrNone(collate)


class InitialiseWith:
    """The user's `worker_init_fn`; `get_worker_info().dataset` is the user's as well.

    Args:
        dataset: The user's.
        initialise: The user's.
    """

    def __init__(self, dataset: Any, initialise: Callable[[int], object]) -> None:  # noqa: ANN401
        self._dataset = dataset
        self._initialise = initialise

    def __call__(self, number: int) -> None:
        """Called by torch in each loader process."""
        object.__setattr__(torch_data.get_worker_info(), "dataset", self._dataset)
        self._initialise(number)


class CollateOrNone:
    """The user's `collate_fn`, except that nothing gives None."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:  # noqa: ANN401 - whatever the user's gives
        """The batch, or None."""
        return self._collate(samples) if samples else None


class TensorRows(torch_data.TensorDataset):
    """Gives whole batches; see `torch.utils.data._utils.fetch` for the protocol."""

    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> list[torch.Tensor] | None:
        """What `default_collate` makes of these samples: copies, which a script may change."""
        if not len(indices):
            return None
        if isinstance(indices, range) and indices.step == 1 and indices.start >= 0:
            rows = slice(indices.start, indices.stop)
            kept = torch.contiguous_format
            return [tensor[rows].clone(memory_format=kept) for tensor in self.tensors]
        index = torch.from_numpy(np.asarray(indices, np.int64))
        return [_rows(tensor, index) for tensor in self.tensors]


def _rows(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The same as `tensor[index]`, which takes three times as long for small rows."""
    if tensor.device.type == "cpu":
        with suppress(IndexError):  # of an index that counts from the end
            return tensor.index_select(0, index)
    return tensor[index]


class DirectLoader:
    """Reads in the training process, as torch's loader does that has no processes.

    That one tells torch's profiler of each batch and asks what kind of dataset it is, which takes
    longer than to take some rows of a tensor.

    Args:
        dataset: What torch accepts.
        sampler: The indices of each batch; asked anew by each iteration.
        collate: Makes a batch of samples.
        generator: The loader's; None: the global one.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - as torch does
        sampler: Iterable[Any],
        collate: Collate,
        generator: torch.Generator | None,
    ) -> None:
        self._dataset = dataset
        self._sampler = sampler
        self._collate = collate
        self._generator = generator

    def __iter__(self) -> Iterator[Any]:
        # As torch's loader does: what a script draws later on must be the same with both.
        torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        collate, read = self._collate, getattr(self._dataset, "__getitems__", None)
        for indices in self._sampler:
            yield collate(read(indices) if read else [self._dataset[index] for index in indices])


class AsItIs:
    """The batch is complete already."""

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 - as above
        """The same."""
        return batch
