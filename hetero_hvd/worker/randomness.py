"""Random numbers that depend on what is computed, not on who computes it or when."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hetero_hvd.core.grains import Stream, seed_of
from hetero_hvd.errors import UserError


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (for CPU and CUDA).

    Args:
        seed: 64 bits.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that scripts use
    # `torch.manual_seed` formats a traceback for each kind of device: a millisecond.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@dataclass(frozen=True)
class Seeds:
    """The seeds of one step.

    Attributes:
        seed: The run's.
        epoch: Epoch.
        step: Step in the epoch.
    """

    seed: int
    epoch: int
    step: int

    def use(self, stream: Stream, grain: int = 0) -> None:
        """Seed all generators for one purpose."""
        seed_all(seed_of(self.seed, self.epoch, self.step, grain, stream))


@dataclass(frozen=True)
class GrainRequest:
    """What the sampler asks the dataset for, also through the queue of a loader process.

    Attributes:
        seeds: Of the step.
        grain: Which grain of the step.
        indices: Its samples.
    """

    seeds: Seeds
    grain: int
    indices: Sequence[int]


class GrainDataset:
    """A user's dataset, read grain by grain, each with generators seeded for it.

    Args:
        dataset: The user's, with a length.
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - whatever torch accepts
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return self._dataset[index]

    def __getitems__(self, requests: Sequence[GrainRequest]) -> list[Any]:
        """Called by torch's loader with what the batch sampler gave."""
        samples: list[Any] = []
        for request in requests:
            request.seeds.use(Stream.DATA, request.grain)
            if hasattr(self._dataset, "__getitems__"):
                samples += self._dataset.__getitems__(list(request.indices))
            else:
                samples += [self._dataset[index] for index in request.indices]
        return samples

    def check(self) -> None:
        """Read one sample twice from equal generators.

        Raises:
            UserError: It is not the same: the dataset has random numbers of its own.
        """
        if not len(self):
            return
        request = GrainRequest(Seeds(0, 0, 0), 0, [0])
        if not _equal(self.__getitems__([request]), self.__getitems__([request])):
            raise UserError(
                f"reproducible: {type(self._dataset).__name__}[0] differs when read twice: draw "
                "from the global generators (random, numpy.random, torch) in __getitem__, they are "
                "seeded for each grain, and keep no state there"
            )


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - samples of any kind
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, Mapping):
        return all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return not isinstance(one, int | float | str | bytes) or one == other or one != one  # noqa: PLR0124
