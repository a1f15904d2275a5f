"""A stream that has shards, such as `datasets` gives, read in parts: each worker its few shards.

A stream has no places, so that every worker would have to read all of it. With the length of each
shard every sample has one, and the trainer divides, resumes and recovers as with any data set.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    get_worker_info,
)
from torch.utils.data._utils import worker as loader_process

from hetero_hvd.core.data.file_sets import FileFacts, file_set
from hetero_hvd.core.data.lanes import lane_order, lanes_of
from hetero_hvd.data import arguments
from hetero_hvd.data.file_system import without_secrets
from hetero_hvd.data.listing import announce
from hetero_hvd.data.streams.sameness import beginning, check_alike
from hetero_hvd.errors import MalformedDataError, UnreadableError, UserError, first_line

logger = logging.getLogger(__name__)

INFO = "_worker_info"
"""Where torch keeps what `get_worker_info` gives."""

MAX_LANES = 64
"""A worker's part of a batch lies in few of them already; each is an open shard."""

MAX_OPEN = 2 * MAX_LANES
"""Shards that are kept open at the place up to which they are read."""

TELL_SECONDS = 30.0
"""Between lines that say how far the counting is."""

MEND = "see whether its file is the right one and whole, or count its samples anew"


class StreamShards(Dataset[Any]):
    """The samples of a stream's shards, one shard behind the other, each in the stream's own order.

    A shard can only be read from its beginning: `sampler` gives an order in which every worker goes
    on in its shards. What a worker has to skip, where it takes over a shard, is read and dropped.

    Args:
        stream: With `num_shards` and `shard(num_shards, index)`, as `load_dataset(...,
            streaming=True)` gives; the same each time that it is read.
        lengths: Samples of each shard. None: they are counted when the data set is made, which
            reads the whole stream once on each worker; keep `lengths` and give them.

    Attributes:
        lengths: As above.

    All workers must have the same lengths, and the same samples at the beginning of the first shard
    and of the last one: they are compared when a worker is admitted.

    Raises:
        UserError: The stream has fewer than two shards, or is another one on each worker or each
            time that it is read, or the lengths are not theirs.
        UnreadableError: It cannot be read here.
    """

    def __init__(self, stream: Any, lengths: Sequence[int] | None = None) -> None:  # noqa: ANN401 - of any package
        self._name = f"StreamShards({type(stream).__name__})"
        num_shards = shards_in(stream)
        if num_shards < 2:  # noqa: PLR2004 - one would be read by every worker
            raise UserError(
                f"{self._name}: cannot be divided: it must have two shards or more, in num_shards, "
                "and shard(num_shards, index): name several files, or make the set anew with more"
            )
        check_alike(stream, self._name)
        self._shards = [stream.shard(num_shards=num_shards, index=i) for i in range(num_shards)]
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._process = os.getpid()
        self.lengths = self._counted() if lengths is None else self._checked(lengths)
        self._first = np.cumsum([0, *self.lengths])
        if not len(self):
            raise UserError(f"{self._name}: there is no sample in its {num_shards} shards")
        named = (FileFacts(f"shard {i} of {each}", each) for i, each in enumerate(self.lengths))
        announce(file_set(f"samples in the shards of {self._name}", named))
        self._announce_beginnings()

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - what the stream gives
        """A sample.

        Raises:
            MalformedDataError: Its shard has fewer or more samples than were counted.
            UnreadableError: Its shard cannot be read here.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        shard = int(np.searchsorted(self._first, index, "right")) - 1
        return self._opened(shard).at(index - int(self._first[shard]))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples."""
        return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        """For a loader's processes, which open shards of their own."""
        return vars(self) | {"_open": OrderedDict()}

    def sampler(self, batch_size: int, *, shuffle: bool = True) -> LaneSampler:
        """The order in which workers read on in their shards.

        Args:
            batch_size: Of the loader, times the batches in a step.
            shuffle: Lay the shards in another order in each epoch.
        """
        return LaneSampler(self, batch_size, shuffle=shuffle)

    def _opened(self, shard: int) -> _OpenShard:
        if self._process != os.getpid():  # this is a loader's process: its files are not ours
            self._open = OrderedDict()
            self._process = os.getpid()
        if shard not in self._open:
            name = f"{self._name}: shard {shard}"
            self._open[shard] = _OpenShard(self._shards[shard], self.lengths[shard], name)
        self._open.move_to_end(shard)
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return self._open[shard]

    def _announce_beginnings(self) -> None:
        """Have it compared whether the shards are those of the other workers.

        Two of them tell files in another order, and an order that is drawn.

        Raises:
            UserError: They are other ones when they are read again.
        """
        filled = np.flatnonzero(self.lengths).tolist()
        tags = [self._beginning(shard) for shard in (filled[0], filled[-1], filled[0])]
        if tags.pop() != tags[0]:
            raise UserError(
                f"{self._name}: shard {filled[0]}: begins with other samples when it is read "
                "again, so that samples would be lost: seed what it draws, sort what it lists, and "
                "change samples at random in the loader's collate_fn"
            )
        ends = zip(dict.fromkeys((filled[0], filled[-1])), tags, strict=False)
        found = [FileFacts(f"shard {shard}", 0, tag) for shard, tag in ends if tag]
        if found:
            announce(file_set(f"the first samples in the shards of {self._name}", found))

    def _beginning(self, shard: int) -> str:
        with reading(f"{self._name}: shard {shard}"):
            return beginning(self._shards[shard])

    def _counted(self) -> list[int]:
        logger.warning(
            "%s: the samples of its %d shards are counted, by reading all of them: keep .lengths, "
            "and give them as lengths=[...]",
            self._name,
            len(self._shards),
        )
        return [self._count(number) for number in range(len(self._shards))]

    def _count(self, number: int) -> int:
        count, name = 0, f"{self._name}: shard {number}"
        told_seconds = time.monotonic()
        with reading(name):
            for count, _ in enumerate(self._shards[number], 1):
                if time.monotonic() > told_seconds + TELL_SECONDS:
                    told_seconds = time.monotonic()
                    logger.warning(
                        "%s: %d samples are counted so far: it must have an end", name, count
                    )
        return count

    def _checked(self, lengths: Any) -> list[int]:  # noqa: ANN401 - whatever the script gives
        wanted = f"a list of {len(self._shards)} numbers, the samples of each shard"
        if not isinstance(lengths, Sequence) or len(lengths) != len(self._shards):
            raise arguments.refused(self._name, "lengths", lengths, wanted)
        return [arguments.whole_number(each, self._name, "lengths", least=0) for each in lengths]


class LaneSampler(Sampler[int]):
    """The order of `StreamShards.sampler`; shuffled by NumPy's global generator, as the trainer's.

    Args:
        dataset: The samples.
        batch_size: Samples of all workers in a step, >= 1.
        shuffle: Whether the shards are laid in another order in each epoch.
    """

    def __init__(self, dataset: StreamShards, batch_size: int, *, shuffle: bool) -> None:
        self._lengths = dataset.lengths
        where = "StreamShards.sampler"
        self._batch_size = arguments.whole_number(batch_size, where, "batch_size", least=1)
        self._shuffle = arguments.switch(shuffle, where, "shuffle")

    def __len__(self) -> int:
        return sum(self._lengths)

    def __iter__(self) -> Iterator[int]:
        num_shards = len(self._lengths)
        order = np.random.permutation(num_shards) if self._shuffle else np.arange(num_shards)  # noqa: NPY002
        num_lanes = min(num_shards, self._batch_size, MAX_LANES)
        lanes = lanes_of(self._lengths, order.tolist(), num_lanes)
        return iter(lane_order(self._lengths, lanes, self._batch_size).tolist())


class _OpenShard:
    """A shard that is read on from where it was left.

    Args:
        shard: Gives its samples each time anew.
        length: How many.
        name: For errors.
    """

    def __init__(self, shard: Any, length: int, name: str) -> None:  # noqa: ANN401 - see `StreamShards`
        self._shard = shard
        self._length = length
        self._name = name
        self._samples: Iterator[Any] = iter(())
        self._next = length

    def at(self, index: int) -> Any:  # noqa: ANN401 - as above
        """The sample in this place; from the beginning again, if it lies behind."""
        with suppress(UnreadableError):
            return self._read(index)
        return self._read(index)  # a connection may have been lost

    def _read(self, index: int) -> Any:  # noqa: ANN401 - as above
        at, self._next = self._next, self._length  # what has failed is opened anew
        with reading(f"{self._name}: sample {index}"):
            if index < at:
                self._samples = iter(self._shard)
                at = 0
            for sample in itertools.islice(self._samples, index - at, index - at + 1):
                if index + 1 == self._length:
                    self._check_end()
                self._next = index + 1
                return sample
        raise MalformedDataError(
            f"{self._name}: has no sample {index}, and should have {self._length}: {MEND}"
        )

    def _check_end(self) -> None:
        """See that the last sample is the last one, so that none is left out in silence."""
        for _ in self._samples:
            raise MalformedDataError(
                f"{self._name}: has more samples than the {self._length} it should have: {MEND}"
            )


def check_read_on(dataset: object, sampler: object) -> None:
    """See that a loader reads on in the shards of a stream.

    Raises:
        UserError: Its sampler goes back and forth, so that shards would be read again and again.
    """
    if _has_shards(dataset) and not isinstance(sampler, LaneSampler | SequentialSampler):
        raise UserError(
            f"StreamShards with {type(sampler).__name__}: a shard can only be read from its "
            "beginning, and would be read again for each sample: say "
            "sampler=dataset.sampler(batch_size) and no shuffle"
        )


def _has_shards(dataset: object) -> bool:
    """Whether a stream's shards are read by it: itself, or what of torch's own it is made of."""
    inner = getattr(dataset, "datasets", [getattr(dataset, "dataset", None)])
    return isinstance(dataset, StreamShards) or (
        isinstance(dataset, ConcatDataset | Subset) and any(map(_has_shards, inner))
    )


def check_places(dataset: object, name: str, *, is_alone: bool) -> None:
    """See that the workers of a job can read a set in parts, whoever trains or evaluates.

    Args:
        dataset: Any.
        name: What the script calls it.
        is_alone: Whether there will never be another worker.

    Raises:
        UserError: It is a stream: each worker would read all of it.
    """
    if is_alone or not isinstance(dataset, IterableDataset):
        return
    num_shards = shards_in(dataset)
    what = f"its {num_shards} shards" if num_shards > 1 else "a stream of several shards (files)"
    raise UserError(
        f"{name}: {type(dataset).__name__} is an IterableDataset, which cannot be read from any "
        "position, so that each worker of a job would read all of it: give a map-style dataset "
        "(with __len__ and __getitem__; hetero_hvd.data.TarShards for .tar files), or "
        f"{what} in hetero_hvd.data.StreamShards(stream, lengths=[...]), whose .lengths are "
        "counted where you leave them out"
    )


def shards_in(stream: object) -> int:
    """How many shards a stream can be divided into; 1 where it cannot."""
    found = getattr(stream, "num_shards", 1)
    return found if isinstance(found, int) and callable(getattr(stream, "shard", None)) else 1


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Let a stream give all of a shard: in a loader's process it would give that process's part.

    Args:
        what: Is read.

    Raises:
        UnreadableError: The system, or the network, does not give it.
    """
    before = get_worker_info()
    vars(loader_process)[INFO] = None
    try:
        yield
    except OSError as error:
        told = without_secrets(first_line(error))
        raise UnreadableError(f"{what}: reading has failed: {told}") from error
    finally:
        vars(loader_process)[INFO] = before
