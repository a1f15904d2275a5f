"""Samples in tar files, as WebDataset has them, each read by its position and no more.

Every sample has a place in the whole set, so the trainer divides, resumes and recovers as with any
other data set, and of a shard a worker reads only the ranges of bytes that its samples are in.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.data import arguments
from hetero_hvd.data.listing import Listing
from hetero_hvd.data.source import Source
from hetero_hvd.errors import MalformedDataError, UserError, first_line

SUFFIX, INDEX_SUFFIX = ".tar", ".tar.index"
KEY = "__key__"
END_BYTES = 2**20
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Where the samples of a shard are; a file beside it, in JSON.

    Attributes:
        num_bytes: Of the shard, by which an index of another one is found out.
        ends: Offset of the first sample, and the end of each.
    """

    num_bytes: int
    ends: list[int]


class TarShards(Dataset[Any]):
    """Samples of all shards, in the order of the shards' names and of their files.

    Files that follow each other and whose names are the same up to the first dot behind the last
    slash are a sample; no two of them have the same name. Where the shards are on this machine,
    they are looked through when the data set is made; elsewhere each needs an index beside it,
    which `write_index` makes once.

    Args:
        url: Of a folder with `.tar` files, or of one; see `Source`.
        decode: Makes what is given of a sample: a dict of the rest of a file's name, such as
            `jpg`, to its bytes, with the name itself as `__key__`. None: the dict.
        source: Further arguments of `Source`.

    Raises:
        UserError: There are no shards, or they cannot be read by position; says why.
        MalformedDataError: A shard is no tar file, or its index is that of another one.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        decode: Callable[[dict[str, Any]], Any] | None = None,
        **source: Any,  # noqa: ANN401 - each has its type there
    ) -> None:
        self.source = Source(url, **source)
        self._decode = decode
        wanted = "a function that makes what is given of a sample's dict"
        arguments.function(decode, f"shards at {self.source.shown}", "decode", wanted)
        self._shards, indices = _shards_and_indices(self.source)
        if not self.source.is_near:
            self.source.require_ranges(self._shards[0])
        ends = [self._ends(shard, indices) for shard in self._shards]
        self._first = np.cumsum([0, *(len(found) - 1 for found in ends)])
        self._starts = np.concatenate([found[:-1] for found in ends])
        self._stops = np.concatenate([found[1:] for found in ends])
        if not len(self):
            raise UserError(f"shards at {self.source.shown}: there is no sample in them")
        self.source.announce("shards at", self._shards)

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - what `decode` gives
        """A sample.

        Raises:
            UnreadableError: Its shard cannot be read here.
            MalformedDataError: It is not in its place; names the shard.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once: those that follow each other are read by one request."""
        found = []
        for run in _runs(indices, self._first):
            shard = self._shards[int(np.searchsorted(self._first, run[0], "right")) - 1]
            start, stop = int(self._starts[run[0]]), int(self._stops[run[-1]])
            content = self.source.read(shard, start, stop)
            with self.source.meter.timing("decode_seconds"):
                for index in run:
                    part = content[self._starts[index] - start : self._stops[index] - start]
                    found.append(self._sample(part, shard))
        return found

    def _sample(self, part: bytes, shard: FileFacts) -> Any:  # noqa: ANN401 - as above
        sample: dict[str, Any] = {}
        place, key = self.source.place(shard.name), ""
        try:
            with tarfile.open(fileobj=io.BytesIO(part + bytes(2 * tarfile.BLOCKSIZE))) as files:
                for member in files:
                    if (file := files.extractfile(member)) is not None:
                        key, extension = _key(member.name)
                        _check_field(extension, sample, f"{place}: {member.name}")
                        sample[extension] = file.read()
        except (tarfile.TarError, EOFError) as error:
            raise MalformedDataError(f"{place}: is damaged: {first_line(error)}") from error
        sample[KEY] = key
        return sample if self._decode is None else self._decode(sample)

    def _ends(self, shard: FileFacts, indices: dict[str, FileFacts]) -> NDArray[np.int64]:
        file = indices.get(f"{shard.name}.index")
        place = self.source.place(shard.name)
        if file is not None:
            try:
                index = msgspec.json.decode(self.source.read(file), type=ShardIndex)
            except msgspec.DecodeError as error:
                raise MalformedDataError(f"{place}.index: {first_line(error)}") from error
            again = "write it again (hetero_hvd.data.write_index)"
            if index.num_bytes != shard.size:
                raise MalformedDataError(
                    f"{place}.index: is of a shard of {index.num_bytes} bytes, and this one has "
                    f"{shard.size}: {again}"
                )
            ends = index.ends
            is_rising = all(one < other for one, other in pairwise(ends))
            if not ends or not is_rising or ends[0] < 0 or ends[-1] > shard.size:
                raise MalformedDataError(
                    f"{place}.index: ends: must rise from >= 0 to at most {shard.size}: {again}"
                )
            return np.array(ends, np.int64)
        if not self.source.is_near:
            raise UserError(
                f"{place}: cannot be positioned: there is no {shard.name}.index beside it; "
                "hetero_hvd.data.write_index(URL) makes one of each shard, once"
            )
        return np.array(_looked_through(self.source, shard), np.int64)


class BlockShuffle(Sampler[int]):
    """An order in which blocks of neighbours are shuffled: few long reads, and well mixed batches.

    It is drawn from NumPy's global generator, which the trainer seeds for each epoch.

    Args:
        dataset: With a length.
        block_size: Samples that stay together, >= 1.
    """

    def __init__(self, dataset: Any, block_size: int = 32) -> None:  # noqa: ANN401 - any with a length
        if isinstance(dataset, str | bytes) or not hasattr(dataset, "__len__"):
            raise arguments.refused("BlockShuffle", "dataset", dataset, "a data set with a length")
        self._length = len(dataset)
        self._block_size = arguments.whole_number(block_size, "BlockShuffle", "block_size", least=1)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        size = self._block_size
        for block in np.random.permutation(-(-self._length // size)).tolist():  # noqa: NPY002
            yield from range(block * size, min(self._length, (block + 1) * size))


def write_index(url: str | os.PathLike[str], **source: Any) -> int:  # noqa: ANN401 - as above
    """Look through all shards of a place once, and write an index beside each that has none.

    Args:
        url: Of the folder, or of one shard; it must be possible to write there.
        source: Further arguments of `Source`.

    Returns:
        How many were written.

    Raises:
        UserError: There are no shards, or nothing can be written there.
    """
    place = Source(url, **{"cache_bytes": 0, **source})
    shards, indices = _shards_and_indices(place)
    missing = [shard for shard in shards if f"{shard.name}.index" not in indices]
    for shard in missing:
        index = ShardIndex(num_bytes=shard.size, ends=_looked_through(place, shard))
        place.write(f"{shard.name}.index", msgspec.json.encode(index))
    return len(missing)


def _shards_and_indices(source: Source) -> tuple[Listing, dict[str, FileFacts]]:
    """The shards of a place, and the indices of some by name.

    Raises:
        UserError: There are none that could be positioned.
    """
    found = source.find((SUFFIX, INDEX_SUFFIX, *COMPRESSED)).files
    shards = Listing(file for file in found if file.name.lower().endswith(SUFFIX))
    if not shards:
        raise UserError(
            f"shards at {source.shown}: {found[0].name}: cannot be positioned: must be a .tar that "
            "is not compressed"
        )
    indices = {file.name: file for file in found if file.name.endswith(INDEX_SUFFIX)}
    if source.is_file and (index := source.beside(".index")) is not None:
        indices[index.name] = index
    return shards, indices


def _looked_through(source: Source, shard: FileFacts) -> list[int]:
    """Offset of the first sample of a shard, and the end of each.

    Raises:
        MalformedDataError: It is no tar file.
    """
    ends, key_before = [0], None
    keys: set[str] = set()
    fields: set[str] = set()
    place = source.place(shard.name)
    try:
        with tarfile.open(fileobj=source.stream(shard)) as files:
            for member in files:
                key, extension = _key(member.name)
                if not member.isfile():
                    raise MalformedDataError(f"{place}: {member.name}: must be a file")
                if key != key_before:
                    if key in keys:
                        raise MalformedDataError(
                            f"{place}: {member.name}: does not follow the other files of its "
                            "sample: sort them by name"
                        )
                    if key_before is not None:
                        ends.append(member.offset)
                    keys.add(key)
                    fields.clear()
                _check_field(extension, fields, f"{place}: {member.name}")
                fields.add(extension)
                key_before = key
            if key_before is not None:
                ends.append(files.offset)
        _check_end(source, shard, files.offset)
    except (tarfile.TarError, EOFError) as error:
        raise MalformedDataError(f"{place}: is no tar file: {first_line(error)}") from error
    return ends


def _check_field(extension: str, fields: Container[str], where: str) -> None:
    """See that a file of a sample does not take the place of another one.

    Raises:
        MalformedDataError: It does.
    """
    if extension in fields or extension == KEY:
        raise MalformedDataError(
            f"{where}: its sample has {extension or 'a file without an extension'} already: must "
            "be there once, in upper or lower case"
        )


def _check_end(source: Source, shard: FileFacts, offset: int) -> None:
    """See that a shard ends as tar files do, so that none of its samples is cut off or unread.

    Raises:
        MalformedDataError: It does not.
    """
    place = source.place(shard.name)
    first = source.read(shard, offset, min(shard.size, offset + tarfile.BLOCKSIZE))
    if offset > shard.size or first != bytes(tarfile.BLOCKSIZE):
        raise MalformedDataError(
            f"{place}: is no tar file: its end is missing: it was cut off, or is not yet complete"
        )
    for start in range(offset, shard.size, END_BYTES):
        if any(source.read(shard, start, min(shard.size, start + END_BYTES))):
            raise MalformedDataError(
                f"{place}: has more behind its end, as joined tar files have: make it anew"
            )


def _key(name: str) -> tuple[str, str]:
    """What the files of a sample have in common, and the rest, in lower case."""
    folder, slash, file = name.rpartition("/")
    key, _, extension = file.partition(".")
    return f"{folder}{slash}{key}", extension.lower()


def _runs(indices: Sequence[int], first: NDArray[np.int64]) -> Iterator[list[int]]:
    """Neighbours that are asked for in their order, within a shard."""
    cuts = np.diff(indices) != 1
    cuts |= np.diff(np.searchsorted(first, indices, "right")) != 0
    for run in np.split(np.asarray(indices), np.flatnonzero(cuts) + 1):
        yield run.tolist()
