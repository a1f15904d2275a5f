"""How long a source is read and decoded, in this process and in the processes of its loaders."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.utils.data import get_worker_info

NUM_ROWS = 64
"""One for the script's process and one for each loader process, so that none writes another's."""


class Reading(NamedTuple):
    """What was done since a time.

    Attributes:
        read_seconds: Of all processes together, as are the others.
        decode_seconds: Of making samples from what was read.
        num_bytes: That were read.
    """

    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_bytes: float = 0.0


class ReadMeter:
    """Counts in memory that loader processes share, however they are started.

    Args:
        name: Of the source, for people.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._sums = torch.zeros(NUM_ROWS, len(Reading._fields), dtype=torch.float64)
        self._sums.share_memory_()
        self._taken = torch.zeros(len(Reading._fields), dtype=torch.float64)
        _meters.add(self)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Time a block.

        Args:
            what: `read_seconds` or `decode_seconds`.
        """
        began_at = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - began_at)

    def add(self, what: str, amount: float) -> None:
        """Add to one of the sums, by its name in `Reading`."""
        info = get_worker_info()
        row = 0 if info is None else 1 + info.id % (NUM_ROWS - 1)
        self._sums[row, Reading._fields.index(what)] += amount

    def take(self) -> Reading:
        """What was added since the last time."""
        total = self._sums.sum(0)
        taken, self._taken = total - self._taken, total
        return Reading(*taken.tolist())


_meters: weakref.WeakSet[ReadMeter] = weakref.WeakSet()


def take_readings() -> dict[str, Reading]:
    """Of each source that the script has opened in this process, by name."""
    found: dict[str, Reading] = {}
    for meter in list(_meters):
        sums = zip(found.get(meter.name, Reading()), meter.take(), strict=True)
        found[meter.name] = Reading(*(one + other for one, other in sums))
    return found
