"""Data sets without places: each worker reads all of it, and is told so."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from hetero_hvd.data.stream_shards import check_seeded, shards_in

logger = logging.getLogger(__name__)

_told: WeakSet[Any] = WeakSet()
"""Streams of which it is said already, whatever they are for."""


class WholeStream:
    """A stream that every worker reads from its beginning.

    Args:
        dataset: An iterable, the same on each worker and at each repetition; its `set_epoch` is
            called, if there is one.
        use: What it is for, in words.

    Raises:
        UserError: It is shuffled otherwise on each worker.
    """

    def __init__(self, dataset: Any, use: str) -> None:  # noqa: ANN401 - any iterable
        check_seeded(dataset)
        self._dataset = dataset
        self._use = use

    def tell(self, num_workers: int, rank: int) -> None:
        """Say once of each stream what reading costs, where there are other workers."""
        if rank or num_workers < 2 or self._dataset in _told:  # noqa: PLR2004 - one reads it once
            return
        _told.add(self._dataset)
        num_shards = shards_in(self._dataset)
        if num_shards > 1:
            hint = f"hetero_hvd.data.StreamShards divides its {num_shards} shards among them"
        else:
            hint = "docs/guide/data.md names data sets that are read in parts"
        kind = type(self._dataset).__name__
        logger.warning(
            "%s: %s has no places: each of the %d workers reads all of it and keeps its part; %s",
            self._use,
            kind,
            num_workers,
            hint,
        )

    def batches(self, epoch: int, skipped: int, size: int) -> Iterator[list[Any]]:
        """The samples of one batch after the other; the last one may have less.

        Args:
            epoch: Which one.
            skipped: Samples that are left out first.
            size: Samples in a batch, > 0.
        """
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        stream = itertools.islice(self._dataset, skipped, None)
        while samples := list(itertools.islice(stream, size)):
            yield samples
