"""What the hub has taken in and not yet put into columns: a file that only grows.

What is in it is acknowledged, so it is on the disk before anybody is told.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.core.recording.framing import framed, records_in
from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sequences import FIRST, NumberRange
from hetero_hvd.run.records.run_files import regular, sync_folder

SUFFIX = ".journal"


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one batch as they are stored.

    Attributes:
        stream: Identity of one life of an agent.
        node: Its node.
        first: Number of the first sample.
        times: Of each, in microseconds by the hub's clock.
        samples: As they were sent.
        missing: First and last number of what will never come.
    """

    stream: str
    node: str
    first: int
    times: list[int]
    samples: list[bytes]
    missing: list[tuple[int, int]]

    @property
    def begin(self) -> int:
        """Number of the first sample that it says something about."""
        return min([self.first, *(first for first, _ in self.missing)])

    @property
    def next_sequence(self) -> int:
        """Number of the first sample that is not stored after it."""
        ends = [last + 1 for _, last in self.missing]
        return max([self.first + len(self.samples), *ends])

    @property
    def ranges(self) -> tuple[NumberRange, ...]:
        """What is missing."""
        return tuple(NumberRange(*each) for each in self.missing)


class JournalPart(NamedTuple):
    """An entry's place in its file.

    Attributes:
        begin: Where it begins.
        size_bytes: It takes in the file.
    """

    begin: int
    size_bytes: int


class JournalParts:
    """Where the entries of each node are, so that one node's are read alone; 16 bytes for each."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, array[int]]] = {}

    def add(self, number: int, node: str, part: JournalPart) -> None:
        """Know of an entry of a node in a journal of a number."""
        self._of.setdefault(number, {}).setdefault(node, array("Q")).extend(part)

    def of(self, number: int, nodes: Iterable[str]) -> list[JournalPart]:
        """Those of some nodes in a journal, in the order of the file."""
        known = self._of.get(number, {})
        found = [iter(known.get(node, ())) for node in set(nodes)]
        return sorted(JournalPart(begin, next(of)) for of in found for begin in of)

    def forget(self, number: int) -> None:
        """Know nothing more of a journal, which is gone."""
        self._of.pop(number, None)


class Journal:
    """The file that is written to. Used by one thread.

    Args:
        folder: Where it is.
        number: Its own; later ones are larger. A file of that number is whole, or is not there.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.path = journal_path(folder, number)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size_bytes = os.fstat(self._descriptor).st_size
        self._is_torn = False
        sync_folder(folder)

    def append(self, entries: Sequence[JournalEntry]) -> list[JournalPart]:
        """Write entries, all or none of them; gives the place of each.

        Raises:
            OSError: The disk does not take them.
        """
        frames = [framed(msgspec.msgpack.encode(entry)) for entry in entries]
        begins = accumulate(map(len, frames), initial=self.size_bytes)
        content = b"".join(frames)
        try:
            if self._is_torn:
                self._mend()
            _write_whole(self._descriptor, content, self.size_bytes)
            os.fdatasync(self._descriptor)
        except OSError:
            self._is_torn = True
            with suppress(OSError):
                self._mend()
            raise
        self.size_bytes += len(content)
        return [JournalPart(at, len(frame)) for at, frame in zip(begins, frames, strict=False)]

    def _mend(self) -> None:
        """Take away what a failure has left: it would else be read as what was acknowledged."""
        os.ftruncate(self._descriptor, self.size_bytes)
        self._is_torn = False

    def close(self) -> None:
        """Write no more."""
        os.close(self._descriptor)


def _write_whole(descriptor: int, content: bytes, place: int) -> None:
    """Write all of it, or raise OSError."""
    if os.pwrite(descriptor, content, place) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def journal_path(folder: Path, number: int) -> Path:
    """Where a journal is."""
    return folder / f"{number:010}{SUFFIX}"


def journal_numbers(folder: Path) -> list[int]:
    """Those that are there, in order."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


class StoredEntry(NamedTuple):
    """An entry of a file.

    Attributes:
        entry: What is in it.
        part: Its place.
    """

    entry: JournalEntry
    part: JournalPart


def stored_entries(content: bytes) -> Iterator[StoredEntry]:
    """What is in a journal; what is damaged is passed over."""
    for found in records_in(content, past_damage=True):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            entry = msgspec.msgpack.decode(found.record, type=JournalEntry)
            yield StoredEntry(entry, JournalPart(found.begin, found.size_bytes))


def entries_in(content: bytes) -> Iterator[JournalEntry]:
    """The same without their places."""
    return (found.entry for found in stored_entries(content))


def hole_before(entry: JournalEntry, next_sequence: int) -> JournalEntry | None:
    """What damage has taken out of a journal before an entry; None: nothing.

    Args:
        entry: Entries of a stream are written without a gap.
        next_sequence: Number of the first sample of its stream that those before it do not have.
    """
    if entry.begin <= next_sequence:
        return None
    hole = (next_sequence, entry.begin - 1)
    return JournalEntry(entry.stream, entry.node, next_sequence, [], [], [hole])


def holes_in(
    entries: Iterable[JournalEntry], next_sequences: Mapping[str, int]
) -> Iterator[JournalEntry]:
    """All that damage has taken out between entries.

    Args:
        entries: Of a journal.
        next_sequences: As of `hole_before`, before the first of them.
    """
    known = dict(next_sequences)
    for entry in entries:
        before = known.get(entry.stream, FIRST)
        if hole := hole_before(entry, before):
            yield hole
        known[entry.stream] = max(before, entry.next_sequence)


def read_journal(path: Path, parts: Iterable[JournalPart] | None = None) -> bytes:
    """All of a journal, or some parts of it; nothing: it is not there, as it was sealed."""
    with suppress(FileNotFoundError), open(path, "rb", opener=regular) as file:
        if parts is None:
            return file.read()
        return b"".join(os.pread(file.fileno(), size, begin) for begin, size in parts)
    return b""


def frames_of(entry: JournalEntry) -> Iterator[Recorded]:
    """The samples of an entry."""
    for number, (at, sample) in enumerate(zip(entry.times, entry.samples, strict=True)):
        yield Recorded(entry.first + number, at, sample)
