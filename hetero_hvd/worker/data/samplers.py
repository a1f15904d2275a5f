"""The order of an epoch's samples, as the sampler of a script's loader wants it.

It follows from seed and epoch alone, so that every worker has the same one, whoever joins, and
whenever it is asked for again. torch's own samplers are drawn by us; a sampler of the script's own
is asked once an epoch, with the global generators seeded for that.
"""

from __future__ import annotations

import logging
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as torch_data
from numpy.typing import NDArray

from hetero_hvd.core.data import sampling, shards
from hetero_hvd.core.data.grains import Stream, seed_of
from hetero_hvd.data.streams.stream_shards import check_read_on
from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.seeding import own_course

logger = logging.getLogger(__name__)

Indices = range | NDArray[np.int64]


_OF_TORCH = (
    torch_data.RandomSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
)
"""Torch's samplers that draw: we draw in their place."""


class EpochSamples(NamedTuple):
    """The samples of an epoch, in the order in which its steps consume them.

    Attributes:
        indices: Which sample is at each position.
        ends: Where each batch of a batch sampler begins, and at last where the last one ends; None:
            steps are cut from the order.
        code: A digest of both; 0 where they follow from seed, epoch and length alone.
    """

    indices: Indices
    ends: NDArray[np.int64] | None = None
    code: int = 0


class _Drawing(NamedTuple):
    """How a sampler's order is drawn.

    Attributes:
        draw: Gives the order of an epoch.
        name: What the sampler is called; "" where its order follows from seed, epoch and length.
        is_shuffled: Whether the order differs from epoch to epoch.
        is_asked: Whether the sampler is the script's own, which may not give the same again.
    """

    draw: Callable[[int], Indices | list[NDArray[np.int64]]]
    name: str = ""
    is_shuffled: bool = True
    is_asked: bool = False


class Sampling:
    """The orders of all epochs of a loader, each drawn from the seed and the epoch.

    What an epoch consists of, its units, are samples; with a batch sampler they are its batches,
    none of which is ever divided between two steps.

    Args:
        loader: The script's.
        seed: Seed of the data order, >= 0.
        is_for_training: Whether samples may be left out or come several times.

    Attributes:
        batch_size: Samples in a batch; with a batch sampler the largest of epoch 0.
        num_units: Of an epoch; -1 for a stream.
        is_batched: Whether the units are the batches of a batch sampler.
        is_shuffled: Whether the order differs from epoch to epoch.
        drop_last: Whether a last, smaller batch is left out.
        name: The sampler with a digest of the order that it gives for epoch 0; "" where the order
            follows from seed, epoch and length alone.

    Raises:
        UserError: The sampler cannot be divided among workers; says why and what to do.
    """

    def __init__(
        self, loader: torch_data.DataLoader[Any], seed: int = 0, *, is_for_training: bool = True
    ) -> None:
        self.is_batched = self.is_shuffled = False
        self.name = ""
        self.drop_last = loader.drop_last
        self.batch_size = loader.batch_size or 1
        self.num_units = -1
        self._known: tuple[int, EpochSamples] | None = None
        if isinstance(loader.dataset, torch_data.IterableDataset):
            return
        batches = loader.batch_sampler
        self.is_batched = type(batches) is not torch_data.BatchSampler
        sampler: Any = batches
        if not self.is_batched:
            sampler = batches.sampler  # type: ignore[union-attr]
            self.batch_size = batches.batch_size  # type: ignore[union-attr]
            self.drop_last = batches.drop_last  # type: ignore[union-attr]
        check_read_on(loader.dataset, getattr(sampler, "sampler", sampler))  # also of Lightning's
        self.num_units = _length(sampler)
        self._drawing = _drawing(
            sampler, seed, is_batched=self.is_batched, is_for_training=is_for_training
        )
        self.is_shuffled = self._drawing.is_shuffled
        if not self.num_units or not self._drawing.name:
            return
        first = self.epoch(0)
        if self._drawing.is_asked and not self._is_repeated(first):
            raise UserError(
                f"{self._drawing.name} gives another order when it is asked again for the same "
                "epoch: it must depend on set_epoch(epoch) and on the global generators (random, "
                "numpy.random, torch), which are seeded for each epoch; keep no state in it, and "
                "no generator of its own"
            )
        self.name = f"{self._drawing.name} {first.code:08x}"
        if first.ends is not None:
            self.batch_size = int(np.diff(first.ends).max())

    def epoch(self, epoch: int) -> EpochSamples:
        """The samples of an epoch; the same whenever it is asked for."""
        if self._known is None or self._known[0] != epoch:
            self._known = (epoch, self._drawn(epoch))
        return self._known[1]

    def _is_repeated(self, first: EpochSamples) -> bool:
        """Whether epoch 0 has the same order again after another epoch."""
        self.epoch(1)
        return self.epoch(0).code == first.code

    def positions(self, epoch: int, units: range) -> range:
        """The positions of an epoch's order that some consecutive units take."""
        ends = self.epoch(epoch).ends
        return units if ends is None else range(int(ends[units.start]), int(ends[units.stop]))

    def _drawn(self, epoch: int) -> EpochSamples:
        name, found = self._drawing.name, self._drawing.draw(epoch)
        if len(found) != self.num_units:
            told = "more" if len(found) > self.num_units else len(found)
            raise UserError(
                f"{name} gives {told} in epoch {epoch}, where its len() is {self.num_units}: must "
                "be as many as len() says, in each epoch"
            )
        if not self.is_batched:
            return EpochSamples(found, code=_code(found) if name else 0)  # type: ignore[arg-type]
        sizes = list(map(len, found))
        if 0 in sizes:
            raise UserError(f"{name} gives an empty batch in epoch {epoch}: leave it out")
        indices = np.concatenate(found)
        ends = np.cumsum([0, *sizes])
        return EpochSamples(indices, ends, _code(np.concatenate([indices, ends])))


def _code(numbers: Any) -> int:  # noqa: ANN401 - a range or an array
    return zlib.crc32(np.asarray(numbers, np.int64).tobytes())


def _length(sampler: Any) -> int:  # noqa: ANN401 - whatever the script gives
    try:
        return len(sampler)
    except (TypeError, NotImplementedError, AttributeError):
        raise UserError(
            f"{_name_of(sampler)} has no len(): the end of an epoch must be known before it begins;"
            " give it a __len__ with what it gives in an epoch"
        ) from None


def _name_of(sampler: object) -> str:
    return f"the DataLoader's sampler {type(sampler).__name__}"


def _drawing(
    sampler: Any,  # noqa: ANN401 - whatever the script gives
    seed: int,
    *,
    is_batched: bool,
    is_for_training: bool,
) -> _Drawing:
    """How a sampler's order is drawn.

    Raises:
        UserError: It cannot be.
    """
    name, kind = _name_of(sampler), type(sampler)
    if isinstance(sampler, torch_data.DistributedSampler):
        raise UserError(
            f"{name} gives each process samples of its own: leave it out and say shuffle=True or "
            "False, as the trainer divides each batch among the workers itself"
        )
    if is_for_training and kind in _OF_TORCH and sampler.generator is not None:
        logger.warning(
            "%s: generator= has no effect: what it draws follows from the run's seed and the epoch",
            name,
        )
    if kind is torch_data.SequentialSampler:
        return _Drawing(lambda _: range(len(sampler)), is_shuffled=False)
    if kind is torch_data.SubsetRandomSampler:
        return _of_subset(_numbers(sampler.indices, name), name, seed)
    if kind is torch_data.RandomSampler and _is_each_once(sampler):
        size = len(sampler)
        return _Drawing(lambda epoch: shards.permutation(size, seed=seed, epoch=epoch))
    if kind not in (torch_data.RandomSampler, torch_data.WeightedRandomSampler):
        return _Drawing(
            lambda epoch: _asked(sampler, name, seed, epoch, is_batched=is_batched),
            name,
            is_asked=True,
        )
    if not is_for_training:
        raise UserError(
            f"{name} leaves samples out or takes them several times: to evaluate, leave it out "
            "or use a SubsetRandomSampler, each of whose samples counts once"
        )
    of_its_kind = _of_uniform if kind is torch_data.RandomSampler else _of_weights
    return of_its_kind(sampler, name, seed)


def _is_each_once(sampler: torch_data.RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def _of_uniform(sampler: torch_data.RandomSampler, name: str, seed: int) -> _Drawing:
    size, count, replacement = len(sampler.data_source), len(sampler), sampler.replacement
    return _Drawing(
        lambda epoch: sampling.uniform(
            size, count, replacement=replacement, seed=seed, epoch=epoch
        ),
        name,
    )


def _of_subset(indices: NDArray[np.int64], name: str, seed: int) -> _Drawing:
    return _Drawing(lambda epoch: sampling.chosen(indices, seed=seed, epoch=epoch), name)


def _of_weights(sampler: torch_data.WeightedRandomSampler, name: str, seed: int) -> _Drawing:
    def draw(epoch: int) -> NDArray[np.int64]:
        weights = _weights(sampler.weights)  # as they are now: a script may set them
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise UserError(f"{name}: weights must be finite and >= 0, and one of them > 0")
        possible = int((sampling.likely(weights) > 0).sum())
        if not sampler.replacement and possible < sampler.num_samples:
            raise UserError(
                f"{name}: {sampler.num_samples} samples without replacement of {possible} with a "
                "weight > 0: draw fewer, or with replacement=True"
            )
        return sampling.weighted(
            weights, sampler.num_samples, replacement=sampler.replacement, seed=seed, epoch=epoch
        )

    return _Drawing(draw, name)


def _weights(found: Any) -> NDArray[np.float64]:  # noqa: ANN401 - numbers, wherever they are
    if isinstance(found, torch.Tensor):
        found = found.detach().cpu()
    return np.asarray(found, np.float64)


def _asked(
    sampler: Any,  # noqa: ANN401 - the script's own
    name: str,
    seed: int,
    epoch: int,
    *,
    is_batched: bool,
) -> Indices | list[NDArray[np.int64]]:
    """What a sampler of the script's own gives; at most one more than it should.

    Raises:
        UserError: It gives something else than indices, or batches of them.
    """
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    with own_course(seed_of(seed, epoch, 0, 0, Stream.SAMPLER)):
        found: Sequence[Any] = list(islice(iter(sampler), len(sampler) + 1))
    if is_batched:
        return [_numbers(batch, name, "lists of indices") for batch in found]
    return _numbers(found, name)


def _numbers(found: Iterable[Any], name: str, what: str = "indices") -> NDArray[np.int64]:
    """Whole numbers as an array.

    Raises:
        UserError: Some are none, or too large.
    """
    try:
        return np.fromiter(map(operator.index, found), np.int64)
    except (TypeError, OverflowError):
        raise UserError(f"{name} must give {what} of samples, whole numbers") from None
