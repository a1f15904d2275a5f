"""Streams, which only a process reads that trains alone: a job refuses them by `check_places`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch.utils.data as torch_data

from hetero_hvd.worker.data.collate import AsItIs


def read_stream(
    loader: torch_data.DataLoader[Any], size: int, skipped: int = 0
) -> Iterator[list[Any]]:
    """The samples of a loader's stream in the order in which torch would give them.

    Args:
        loader: The script's; its processes read for it.
        size: Samples in a batch, > 0; the last one may have fewer.
        skipped: Samples at the beginning that are read and left out, >= 0.

    Yields:
        The samples of one batch, which are not collated yet.
    """
    batches = torch_data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=AsItIs(),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
    samples = itertools.islice(itertools.chain.from_iterable(batches), skipped, None)
    while batch := list(itertools.islice(samples, size)):
        yield batch
