"""A loader like the script's that reads what a plan asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from hetero_hvd.worker.data.collate import (
    AsItIs,
    Collate,
    DirectLoader,
    InitialiseWith,
    TensorRows,
    fetching,
)
from hetero_hvd.worker.data.grain_reading import GrainDataset, GrainTrial
from hetero_hvd.worker.data.in_band import InBand
from hetero_hvd.worker.data.samplers import Indices

Batch = Sequence[Any] | Indices
"""What is to be read for a batch."""


class StepSampler:
    """The inner loader's batch sampler: asks for the plan only when a step is to be loaded.

    Attributes:
        steps: Of each step its number, and what is to be read for it.
    """

    def __init__(self) -> None:
        self.steps: Iterator[tuple[int, Batch]] = iter(())

    def __iter__(self) -> Iterator[Batch]:
        return map(itemgetter(1), self.steps)


class _InLists:
    """The same for a dataset of the script, which knows whole numbers of Python only."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return map(listed, self._sampler)


def listed(indices: Batch) -> Sequence[Any]:
    """Whole numbers of Python, where an array has others."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices


def inner_loader(
    loader: torch_data.DataLoader[Any],
    dataset: Any,  # noqa: ANN401 - whatever torch accepts
    sampler: StepSampler,
    num_workers: int | None = None,
) -> Iterable[Any]:
    """A loader like the user's that reads what the sampler asks for.

    Args:
        loader: The user's.
        dataset: The user's, or one of ours that gives whole batches.
        sampler: What to read.
        num_workers: So many loader processes at most; None: as many as the user's has.
    """
    if isinstance(dataset, GrainDataset):
        collate: Collate = AsItIs()
    elif isinstance(dataset, GrainTrial):
        collate = itemgetter(0)
    else:
        dataset, collate = fetching(dataset, loader.collate_fn)
    batches = sampler if isinstance(dataset, TensorRows) else _InLists(sampler)
    if not loader.num_workers and not loader.pin_memory:
        return DirectLoader(dataset, batches, collate, loader.generator)
    num_workers = min(loader.num_workers, num_workers or loader.num_workers)
    if num_workers and not isinstance(dataset, (GrainDataset, GrainTrial)):
        collate = InBand(collate)
    initialise = loader.worker_init_fn and InitialiseWith(loader.dataset, loader.worker_init_fn)
    return torch_data.DataLoader(
        dataset,
        batch_sampler=batches,  # type: ignore[arg-type]  # any iterable of indices will do
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=initialise,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
