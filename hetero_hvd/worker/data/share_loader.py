"""Hands out this worker's share of each global batch.

Step k of an epoch consumes positions `[k*B, (k+1)*B)` of a permutation that depends on (seed,
epoch) alone; a worker takes the contiguous slice that the plan gives its rank. So nothing but
(epoch, step) describes where the data is, and no sample is lost or repeated over any change of plan
or membership.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch.utils.data as torch_data

from hetero_hvd.core.data import grains, shards
from hetero_hvd.core.data.grains import Stream
from hetero_hvd.errors import InvariantError, UserError
from hetero_hvd.worker.data.grain_batch import GrainBatch
from hetero_hvd.worker.data.grain_reading import GrainDataset, GrainRequest, GrainTrial, grains_of
from hetero_hvd.worker.data.inner_loader import Batch, StepSampler, inner_loader, listed
from hetero_hvd.worker.data.position import Order
from hetero_hvd.worker.data.samplers import Indices, Sampling
from hetero_hvd.worker.data.seeding import Seeds, own_course
from hetero_hvd.worker.data.streams import read_stream


class Slice(NamedTuple):
    """This worker's part of one step.

    Attributes:
        step_in_epoch: Which step.
        num_samples: Samples of this worker, >= 0.
        global_samples: Samples of all workers together in this step, > 0.
        batch: What the user's `collate_fn` made of them; None when there are none.
        epoch: Which epoch.
        first_sample: Samples of the step that come before them, on other workers.
        grains: The same as `batch`, grain by grain; None where there are no grains.
        num_idle: Workers that have no part of the step.
        order_code: A digest of the epoch's order; see `EpochSamples`.
    """

    step_in_epoch: int
    num_samples: int
    global_samples: int
    batch: Any
    epoch: int = 0
    first_sample: int = 0
    grains: GrainBatch | None = None
    num_idle: int = 0
    order_code: int = 0


SharesAt = Callable[[int], tuple[Sequence[int], int]]
"""Local batch sizes in rank order and this worker's rank, for a step of the epoch."""


class ShareLoader:
    """A user's `DataLoader`, cut into this worker's shares.

    The global batch size, the sampler, `drop_last`, `collate_fn`, worker processes, prefetching and
    pinning are taken from the user's loader. The data order comes from (seed, epoch), not from
    torch's generator, so that every worker knows it; see `Sampling`.

    An `IterableDataset` cannot be cut: a job has refused it, and a process alone reads all of it.

    Args:
        loader: The loader of the script, with `batch_size` = samples per global batch.
        sampling: The orders of its epochs; None: those of seed 0.
        accumulation_steps: Batches of the loader in one optimizer step, >= 1.
        seed: Seed of the data order.
        grain: Samples that are never split between workers, and that are read and collated by
            themselves, with generators seeded for them; None: samples are divided one by one and
            read as they come.
        undivided: The same, but read as they come.

    Raises:
        UserError: The loader is of a kind whose samples cannot be divided; says which and what to
            do.
    """

    def __init__(
        self,
        loader: torch_data.DataLoader[Any],
        sampling: Sampling | None = None,
        *,
        accumulation_steps: int = 1,
        seed: int = 0,
        grain: int | None = None,
        undivided: int = 1,
    ) -> None:
        self._source = loader
        self._seed = seed
        self._grain = grain
        self._undivided = grain or undivided
        self._is_stream = isinstance(loader.dataset, torch_data.IterableDataset)
        if not self._is_stream:
            _check_length(loader, "the training loader")
        self._sampling = sampling or Sampling(loader, seed)
        self.global_batch_size = self._sampling.batch_size * accumulation_steps
        self._units_per_step = self.global_batch_size
        if self._sampling.is_batched:
            self._units_per_step = accumulation_steps
            self.global_batch_size += -self.global_batch_size % self._undivided
        if not self._is_stream:
            self._check_steps(self._sampling.num_units)
        self._sampler = StepSampler()
        self._inner: Iterable[Any] | None = None
        if grain is not None:
            try_reading(loader, grain)
            self._inner = inner_loader(loader, self._reader(), self._sampler)
        elif not self._is_stream:
            self._inner = inner_loader(loader, loader.dataset, self._sampler)

    def _check_steps(self, num_samples: int) -> None:
        """Refuse an epoch without a step."""
        if not num_samples:
            raise UserError("the training loader's sampler gives no samples: its len() is 0")
        if self._sampling.drop_last and num_samples < self.global_batch_size:
            raise UserError(
                f"{num_samples} samples are less than one step of {self.global_batch_size}, and "
                "drop_last=True leaves them out: no step would be taken"
            )

    @property
    def prefetch_steps(self) -> int:
        """Steps ahead of the current one whose samples may already be asked for."""
        return self._source.num_workers * (self._source.prefetch_factor or 0)

    def steps_per_epoch(self, skipped: int = 0) -> int | None:
        """Optimizer steps in an epoch; None for a stream, whose end is known when it comes.

        Args:
            skipped: Samples of the epoch that come before its step 0; with a batch sampler its
                batches.
        """
        if self._is_stream:
            return None
        drop_last = self._sampling.drop_last
        left = self._sampling.num_units - skipped
        return shards.steps_per_epoch(left, self._units_per_step, drop_last=drop_last)

    @property
    def order(self) -> Order:
        """What decides which samples a step consumes."""
        return Order(
            global_batch_size=self._units_per_step,
            num_samples=self._sampling.num_units,
            is_shuffled=self._sampling.is_shuffled,
            seed=self._seed,
            drop_last=self._sampling.drop_last,
            sampler=self._sampling.name,
        )

    def slices(
        self, epoch: int, first_step: int, shares_at: SharesAt, skipped: int = 0
    ) -> Iterator[Slice]:
        """This worker's slices of one epoch, from a step on.

        Steps are loaded ahead by `prefetch_steps`; `shares_at` is asked once per step, in order,
        when its loading starts.

        Args:
            epoch: Which permutation.
            first_step: First step of the epoch to hand out, >= 0.
            shares_at: The plan.
            skipped: Samples of the epoch that come before its step 0.
        """
        if self._inner is None:
            yield from self._stream_slices(epoch, first_step, skipped)
            return
        planned: list[Slice] = []
        self._sampler.steps = self._indices(epoch, first_step, shares_at, skipped, planned)
        for batch in self._inner:
            part = planned.pop(0)
            yield part._replace(batch=batch) if self._grain is None else self._whole(part, batch)

    def _whole(self, part: Slice, found: Any) -> Slice:  # noqa: ANN401 - what the reader gave
        """The part with its grains, put together for the script."""
        if not (grains_found := grains_of(found)):
            return part
        size = self._grain or 1
        sizes = [min(size, part.num_samples - at) for at in range(0, part.num_samples, size)]
        batch = GrainBatch(grains_found, sizes)
        return part._replace(batch=batch.joined, grains=batch)

    def batches_alone(self, num_batches: int) -> Iterator[int]:
        """Read whole batches by one reader, as fast as it can; yields the samples of each."""
        if self._is_stream:
            return
        sampler, planned = StepSampler(), list[Slice]()
        total = (self.global_batch_size,), 0
        steps = self._indices(0, 0, lambda _: total, 0, planned)
        sampler.steps = itertools.islice(steps, num_batches)
        dataset = self._source.dataset if self._grain is None else self._reader()
        for _ in inner_loader(self._source, dataset, sampler, num_workers=1):
            yield planned.pop(0).num_samples

    def _reader(self) -> GrainDataset:
        return GrainDataset(self._source.dataset, self._source.collate_fn)

    @property
    def num_samples(self) -> int:
        """In an epoch, as its sampler gives them; with a batch sampler the number of batches."""
        return self._sampling.num_units

    def num_chunks(self, size: int) -> int:
        """Pieces of `size` samples in an epoch; the last, smaller one counts unless dropped."""
        return shards.steps_per_epoch(self.num_samples, size, drop_last=self._sampling.drop_last)

    def indices(self, epoch: int, positions: range) -> Sequence[int]:
        """Samples at these places of the epoch's order."""
        return listed(_indices_at(positions, self._sampling.epoch(epoch).indices))

    def order_code(self, epoch: int) -> int:
        """A digest of the epoch's order; see `EpochSamples`."""
        return 0 if self._is_stream else self._sampling.epoch(epoch).code

    def batches_of(self, samples: Iterator[Sequence[int]]) -> Iterator[Any]:
        """A batch for each list of samples; `samples` may go on after an end."""
        if self._inner is None:
            raise InvariantError("a stream cannot be read from any position")
        self._sampler.steps = zip(itertools.repeat(0), samples, strict=False)
        return iter(self._inner)

    def _indices(
        self,
        epoch: int,
        first_step: int,
        shares_at: SharesAt,
        skipped: int,
        planned: list[Slice],
    ) -> Iterator[tuple[int, Batch]]:
        samples = self._sampling.epoch(epoch)
        order = samples.indices
        for step in range(first_step, self.steps_per_epoch(skipped) or 0):
            positions = self._positions(epoch, step, skipped)
            mine, num_idle = _my_part(positions, *shares_at(step), self._undivided)
            part = Slice(
                step_in_epoch=step,
                num_samples=len(mine),
                global_samples=len(positions),
                batch=None,
                epoch=epoch,
                first_sample=mine.start - positions.start,
                num_idle=num_idle,
                order_code=samples.code,
            )
            planned.append(part)
            if self._grain is None:
                yield step, _indices_at(mine, order)
                continue
            seeds = Seeds(self._seed, epoch, step)
            pieces = grains.pieces(mine, grain=self._grain, start=positions.start)
            found = ((grain, listed(_indices_at(piece, order))) for grain, piece in pieces)
            yield step, [GrainRequest(seeds, grain, indices) for grain, indices in found]

    def _positions(self, epoch: int, step: int, skipped: int) -> range:
        """What a step consumes of the epoch's order.

        Raises:
            UserError: A batch sampler has made it larger than the reproducible mode can add up.
        """
        units = shards.step_positions(
            step,
            num_samples=self._sampling.num_units,
            global_batch_size=self._units_per_step,
            first_sample=skipped,
        )
        positions = self._sampling.positions(epoch, units)
        if self._grain is not None and len(positions) > self.global_batch_size:
            raise UserError(
                f"reproducible: step {step} of epoch {epoch} has {len(positions)} samples: must be "
                f"at most {self.global_batch_size}, as in epoch 0; let the batch_sampler divide "
                "larger batches, or begin with its largest"
            )
        return positions

    def _stream_slices(self, epoch: int, first_step: int, skipped: int) -> Iterator[Slice]:
        """Whole steps: there is nobody to share a stream with."""
        dataset: Any = self._source.dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        size = self.global_batch_size
        found = read_stream(self._source, size, skipped + first_step * size)
        for step, samples in enumerate(found, first_step):
            count = len(samples)
            if count == size or not self._sampling.drop_last:
                yield Slice(step, count, count, self._source.collate_fn(samples), epoch)


def contiguous_batches(
    loader: torch_data.DataLoader[Any],
    shares: Sequence[int],
    rank: int,
    *,
    seeds: Seeds | None = None,
    whole_batches: bool = False,
    num_batches: int | None = None,
) -> Iterator[tuple[int, int, Any]]:
    """One worker's part of a whole set, in the set's own order; all of a stream.

    Args:
        loader: The loader of the script; its `batch_size` bounds each batch.
        shares: Relative shares in rank order, >= 0, at least one > 0.
        rank: Which part.
        seeds: Divide whole batches only, each with seeded generators; None: sample by sample.
        whole_batches: Divide whole batches only.
        num_batches: Those after so many are left out; None: none are.

    Yields:
        Which batch of the set (where whole ones are divided), number of samples, the batch.
    """
    if isinstance(loader.dataset, torch_data.IterableDataset):
        batches = enumerate(read_stream(loader, loader.batch_size or 1))
        for number, samples in itertools.islice(batches, num_batches):
            yield number, len(samples), loader.collate_fn(samples)
        return
    _check_length(loader, "the loader to evaluate")
    sampling = Sampling(loader, is_for_training=False)
    if not sampling.num_units:
        raise UserError("the sampler of the loader to evaluate gives no samples: its len() is 0")
    order = sampling.epoch(0).indices if sampling.name else range(sampling.num_units)
    size = 1 if sampling.is_batched else sampling.batch_size
    total = min(sampling.num_units, (num_batches or sampling.num_units) * size)
    enough = [share * -(-total // sum(shares)) for share in shares]
    undivided = size if whole_batches or seeds is not None else 1
    mine, _ = _my_part(range(total), enough, rank, undivided)
    units = [mine[start : start + size] for start in range(0, len(mine), size)]
    parts = [sampling.positions(0, each) for each in units]
    sampler = StepSampler()
    if seeds is None:
        sampler.steps = ((0, _indices_at(part, order)) for part in parts)
        inner = inner_loader(loader, loader.dataset, sampler)
    else:
        numbered = zip(units, parts, strict=True)
        sampler.steps = (
            (0, [_request(seeds, unit.start // size, listed(_indices_at(part, order)))])
            for unit, part in numbered
        )
        inner = inner_loader(loader, GrainDataset(loader.dataset, loader.collate_fn), sampler)
    for unit, part, batch in zip(units, parts, inner, strict=True):
        yield unit.start // size, len(part), batch if seeds is None else grains_of(batch)[0]


def _request(seeds: Seeds, number: int, indices: Sequence[int]) -> GrainRequest:
    return GrainRequest(seeds, number, indices, Stream.EVALUATION_DATA)


def _check_length(loader: torch_data.DataLoader[Any], name: str) -> None:
    """Refuse a dataset without samples.

    Raises:
        UserError: There is none.
    """
    if not len(loader.dataset):  # type: ignore[arg-type]
        raise UserError(f"{name} has no samples: len(loader.dataset) is 0")


def try_reading(loader: torch_data.DataLoader[Any], grain: int) -> None:
    """Find out, in the process that reads, whether what the loader reads can be reproduced.

    Args:
        loader: The user's.
        grain: Samples that are collated together.

    Raises:
        UserError: It cannot; says why.
    """
    if isinstance(loader.dataset, torch_data.IterableDataset):
        raise UserError(
            "reproducible: an IterableDataset cannot be read from any position: use a dataset "
            "with a length"
        )
    reader = GrainDataset(loader.dataset, loader.collate_fn)
    sampler = StepSampler()
    sampler.steps = iter([(0, [0])])
    with own_course():
        found = inner_loader(loader, GrainTrial(reader, grain), sampler, num_workers=1)
        for complaint in found if len(reader) else ():
            if complaint:
                raise UserError(complaint)


def _my_part(
    positions: range, sizes: Sequence[int], rank: int, grain: int = 1
) -> tuple[range, int]:
    """This rank's positions, and how many ranks have none."""
    places, num_idle = _my_places(len(positions), tuple(sizes), rank, grain)
    return positions[places], num_idle


@lru_cache(maxsize=16)
def _my_places(
    num_positions: int, sizes: tuple[int, ...], rank: int, grain: int
) -> tuple[slice, int]:
    """Which of the positions of a step are this rank's; most steps are divided as the one before.

    A batch sampler may give more than the plan is for; then all have more, in proportion.
    """
    times = -(-num_positions // sum(sizes))
    parts = grains.divide(num_positions, [max(1, times) * size for size in sizes], grain=grain)
    mine = shards.slice_of(range(num_positions), parts, rank)
    return slice(mine.start, mine.stop), parts.count(0)


def _indices_at(positions: range, order: Indices) -> Indices:
    return order[positions.start : positions.stop]
