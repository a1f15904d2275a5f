"""What the hub has taken in and not yet put into columns: a file that only grows.

What is in it is acknowledged, so it is on the disk before anybody is told.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.core.recording.framing import framed, records_in, whole_bytes
from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sequences import NumberRange
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
    def next_sequence(self) -> int:
        """Number of the first sample that is not stored after it."""
        ends = [last + 1 for _, last in self.missing]
        return max([self.first + len(self.samples), *ends])

    @property
    def ranges(self) -> tuple[NumberRange, ...]:
        """What is missing."""
        return tuple(NumberRange(*each) for each in self.missing)


class Journal:
    """The file that is written to. Used by one thread.

    Args:
        folder: Where it is.
        number: Its own; later ones are larger.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.path = journal_path(folder, number)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size_bytes = whole_bytes(self.path.read_bytes())
        os.ftruncate(self._descriptor, self.size_bytes)  # a crash has torn what follows
        sync_folder(folder)

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Write entries, all or none of them.

        Raises:
            OSError: The disk does not take them.
        """
        content = b"".join(framed(msgspec.msgpack.encode(entry)) for entry in entries)
        try:
            # At this place, whatever the last failure has left there.
            _write_whole(self._descriptor, content, self.size_bytes)
            os.fdatasync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
            raise
        self.size_bytes += len(content)

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


def entries_in(content: bytes) -> Iterator[JournalEntry]:
    """What is in a journal, as far as it is whole."""
    for found in records_in(content, past_damage=True):
        yield msgspec.msgpack.decode(found.record, type=JournalEntry)


def read_journal(path: Path) -> bytes:
    """All of a journal; nothing: it is not there, as it was sealed."""
    with suppress(FileNotFoundError), open(path, "rb", opener=regular) as file:
        return file.read()
    return b""


def frames_of(entry: JournalEntry) -> Iterator[Recorded]:
    """The samples of an entry."""
    for number, (at, sample) in enumerate(zip(entry.times, entry.samples, strict=True)):
        yield Recorded(entry.first + number, at, sample)
