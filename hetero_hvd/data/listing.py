"""The files below a place, sorted by name, in little memory; as objects they take five times it.

And which of them the script has opened in this process, for the comparison with other workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload

import numpy as np

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.messages import FileSet

ENCODING = "utf-8"


class _Texts:
    """Texts as one array of bytes, which forked processes share without copying it."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [text.encode(ENCODING, "surrogateescape") for text in texts]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __getitem__(self, index: int) -> str:
        content = self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()
        return content.decode(ENCODING, "surrogateescape")


class Listing:
    """Files in the order of their names' code points.

    Args:
        files: In any order.
    """

    def __init__(self, files: Iterable[FileFacts]) -> None:
        found = sorted(files)
        self._names = _Texts(file.name for file in found)
        self._tags = _Texts(file.tag for file in found)
        self._sizes = np.array([file.size for file in found], np.int64)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> FileFacts: ...
    @overload
    def __getitem__(self, index: slice) -> list[FileFacts]: ...
    def __getitem__(self, index: int | slice) -> FileFacts | list[FileFacts]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return FileFacts(self._names[index], int(self._sizes[index]), self._tags[index])

    def __iter__(self) -> Iterator[FileFacts]:
        return (self[index] for index in range(len(self)))


_opened: list[FileSet] = []


def announce(found: FileSet) -> None:
    """The script has opened a set of files."""
    _opened.append(found)


def opened_files() -> tuple[FileSet, ...]:
    """All that it has opened so far, in that order."""
    return tuple(_opened)
