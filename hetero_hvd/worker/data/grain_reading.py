"""Reads a user's dataset grain by grain, and finds out whether that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import data as torch_data

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.collate import Collate, fetching
from hetero_hvd.worker.data.own_generators import OwnGenerators
from hetero_hvd.worker.data.seeding import Seeds, equal, own_course

NUM_TRIALS = 20
"""Samples that are read twice before training, once in each direction."""


@dataclass(frozen=True)
class GrainRequest:
    """What the sampler asks the dataset for, also through the queue of a loader process.

    Attributes:
        seeds: Of the step.
        grain: Which grain of the step.
        indices: Its samples.
        stream: What they are read for.
    """

    seeds: Seeds
    grain: int
    indices: Sequence[int]
    stream: Stream = Stream.DATA


@dataclass(frozen=True)
class GrainRefusal:
    """In place of what was asked for: an error cannot leave a loader process as it is.

    Attributes:
        words: For the user.
    """

    words: str


class GrainDataset:
    """A user's dataset, read and collated grain by grain, each with generators seeded for it.

    Args:
        dataset: The user's, with a length.
        collate: The user's `collate_fn`.
    """

    def __init__(self, dataset: Any, collate: Collate) -> None:  # noqa: ANN401 - as torch does
        self._name = type(dataset).__name__
        self._length = len(dataset)
        self._dataset, self._collate = fetching(dataset, collate)
        self._own = OwnGenerators({"the dataset": dataset, "collate_fn": collate})

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, requests: Sequence[GrainRequest]) -> list[Any] | GrainRefusal:
        """Called by torch's loader with what the batch sampler gave; the collated grains."""
        grains = []
        for request in requests:
            before = self._own.states()
            grains.append(self._collate(self._samples(request)))
            if complaint := self._own.complaint(before):
                return GrainRefusal(complaint)
        return grains

    def complaint(self, grain: int) -> str:
        """Why this dataset cannot be reproduced, in words; empty if nothing was found.

        Some samples are read in one order and then in the other, and grains of them collated in
        between, always from equal generators: what comes out must not have changed.

        Args:
            grain: Samples in a grain.
        """
        count = min(NUM_TRIALS, len(self))
        indices = [len(self) * number // count for number in range(count)]
        single = [GrainRequest(Seeds(0, 0, 0), i, [i], Stream.TRIAL) for i in indices]
        pairs = [
            GrainRequest(Seeds(0, 0, 1), 0, indices[:grain], Stream.TRIAL),
            GrainRequest(Seeds(0, 0, 1), 1, indices[-grain:], Stream.TRIAL),
        ]
        with own_course():
            before = self._own.states()
            samples = [self._samples(request) for request in single]
            again = [self._samples(request) for request in reversed(single)]
            if complaint := self._own.complaint(before):
                return complaint
            for index, one, other in zip(indices, samples, reversed(again), strict=True):
                if not equal(one, other):
                    return self._state_complaint(f"{self._name}[{index}]")
            batches = [self._collate(self._samples(pairs[place])) for place in (0, 1, 0)]
            if complaint := self._own.complaint(before):
                return complaint
            is_same = equal(batches[0], batches[2])
            return "" if is_same else self._state_complaint("a batch of collate_fn")

    def _samples(self, request: GrainRequest) -> Any:  # noqa: ANN401 - a list, or all rows
        request.seeds.use(request.stream, request.grain)
        indices = list(request.indices)
        if hasattr(self._dataset, "__getitems__"):
            return self._dataset.__getitems__(indices)
        return [self._dataset[index] for index in indices]

    @staticmethod
    def _state_complaint(what: str) -> str:
        return (
            f"reproducible: {what} differs when read twice: it must depend on the samples and on "
            "the global generators (random, numpy.random, torch), which are seeded for each grain; "
            "keep no state there"
        )


class GrainTrial(torch_data.Dataset[Any]):
    """Whatever is asked for, the complaint about a dataset; so that a loader process can tell it.

    Args:
        reader: The dataset.
        grain: Samples in a grain.
    """

    def __init__(self, reader: GrainDataset, grain: int) -> None:
        self._reader = reader
        self._grain = grain

    def __getitem__(self, index: int) -> str:
        """The complaint; see `GrainDataset.complaint`."""
        return self._reader.complaint(self._grain)


def grains_of(found: list[Any] | GrainRefusal | None) -> list[Any]:
    """What `GrainDataset` gave.

    Raises:
        UserError: It was a refusal.
    """
    if isinstance(found, GrainRefusal):
        raise UserError(found.words)
    return found or []
