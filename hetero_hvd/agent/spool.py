"""Samples that wait on this node's disk until the hub has them; so many as there is room for.

Each life of an agent is a stream of its own, so that no number is given twice whatever a crash has
torn. Files hold samples of one stream and are deleted as a whole, once all of them are
acknowledged, or the oldest one where there is no room: what was dropped is known by its numbers.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.core.recording.framing import framed, records_in
from hetero_hvd.core.recording.sequences import FIRST, NumberRange
from hetero_hvd.discovery.hub_link import Dropped
from hetero_hvd.run.records.run_files import FOLDER_MODE, lock_folder, private

logger = logging.getLogger(__name__)

SUFFIX = ".spool"
DROPPED_FILE = "dropped.json"
HUB_FILE = "hub"
DEFAULT_MAX_BYTES = 256 * 2**20
FILE_RATIO = 1 / 64
"""Of all room: so much of it is lost at once."""

MAX_FILE_BYTES, MIN_FILE_BYTES = 2**20, 2**12

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What says nothing about a file that cannot be read."""


class SpoolHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First record of a file.

    Attributes:
        stream: Identity of one life of an agent.
        boot: Which start of the machine.
        wall_offset_seconds: What the wall clock showed more than that since boot.
    """

    stream: str
    boot: str
    wall_offset_seconds: float


class SpooledSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample.

    Attributes:
        sequence: Its number in the stream.
        at_seconds: By the clock since boot.
        sample: As it is sent.
    """

    sequence: int
    at_seconds: float
    sample: bytes


class Spooled(NamedTuple):
    """What is to be sent next.

    Attributes:
        header: Of the stream.
        samples: In their order; at least one.
    """

    header: SpoolHeader
    samples: list[SpooledSample]


class _SpoolFile:
    """A file, and where its samples are known, too: of the newest one always."""

    def __init__(self, path: Path, header: SpoolHeader, size_bytes: int, last: NumberRange) -> None:
        self.path = path
        self.header = header
        self.size_bytes = size_bytes
        self.numbers = last
        self.samples: list[SpooledSample] | None = None

    def read(self) -> list[SpooledSample]:
        """Its samples."""
        if self.samples is None:
            self.samples = list(_samples(self.path.read_bytes()))
        return self.samples


class SampleSpool:
    """The spool of one agent. Any thread may call it.

    Args:
        folder: Its own; made if it is not there.
        boot: Which start of the machine this is.
        wall_offset_seconds: What the wall clock shows more than that since boot.
        max_bytes: Of all files.

    Attributes:
        num_dropped: Samples of this life that were dropped.

    Raises:
        OSError: The folder cannot be made, or another agent has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        wall_offset_seconds: float,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        lock = lock_folder(folder)
        if lock is None:
            raise OSError(f"{folder}: another agent has it")
        self._lock_descriptor = lock
        self._folder = folder
        self._max_bytes = max_bytes
        self._file_bytes = min(MAX_FILE_BYTES, max(MIN_FILE_BYTES, int(max_bytes * FILE_RATIO)))
        self._lock = threading.Lock()
        self._header = SpoolHeader(
            stream=secrets.token_hex(8), boot=boot, wall_offset_seconds=wall_offset_seconds
        )
        self._files: deque[_SpoolFile] = deque(_earlier(folder))
        self._open: _SpoolFile | None = None
        self._descriptor = -1
        self._next_sequence = FIRST
        self._next_file = 1 + max(map(_number, folder.glob(f"*{SUFFIX}")), default=0)
        self._dropped: list[Dropped] = _read_dropped(folder / DROPPED_FILE)
        self._is_failing = False
        self._room_is_told = False
        self.num_dropped = 0

    @property
    def stream(self) -> str:
        """Identity of this life's stream."""
        return self._header.stream

    @property
    def hub(self) -> str:
        """Identity of the hub that has taken samples last; empty: none has."""
        with suppress(OSError):
            return (self._folder / HUB_FILE).read_text()[:64]
        return ""

    @hub.setter
    def hub(self, identity: str) -> None:
        if identity != self.hub:
            new = self._folder / f"{HUB_FILE}.new"
            with suppress(OSError):  # a full disk: what is known stays
                new.write_text(identity)
                new.replace(self._folder / HUB_FILE)

    @property
    def size_bytes(self) -> int:
        """Of all that waits."""
        return sum(file.size_bytes for file in list(self._files))

    def append(self, at_seconds: float, sample: bytes) -> None:
        """Take a sample in; what there is no room for is dropped and counted. Never raises."""
        with self._lock:
            sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
            record = SpooledSample(sequence, at_seconds, sample)
            try:
                self._write(record)
            except OSError as error:
                self._close_file()
                self._drop(self._header.stream, NumberRange(sequence, sequence))
                self._complain(error)
                return
            self._is_failing = False
            self._make_room()

    def oldest(self, max_samples: int, max_bytes: int) -> Spooled | None:
        """What is to be sent next; None: nothing waits.

        What the disk does not give back is dropped and counted.

        Raises:
            OSError: It cannot be read now; it stays.
        """
        with self._lock:
            while self._files:
                file = self._files[0]
                try:
                    waiting = [s for s in file.read() if s.sequence >= file.numbers.first]
                except OSError as error:
                    if error.errno in PASSING:
                        raise
                    logger.warning("%s: cannot be read: %s", file.path, error.strerror)
                    waiting = []
                if waiting:
                    return Spooled(file.header, list(_first(waiting, max_samples, max_bytes)))
                if file is self._open:
                    return None
                self._delete(self._files.popleft())
                if file.numbers.size > 0:
                    self._drop(file.header.stream, file.numbers)
            return None

    def dropped(self) -> list[Dropped]:
        """What will never be sent, as far as it is not acknowledged and nothing before it waits."""
        with self._lock:
            waiting = [(f.header.stream, f.numbers) for f in self._files if f.numbers.size > 0]
            return [
                each
                for each in self._dropped
                if not any(s == each.stream and n.first < each.first for s, n in waiting)
            ]

    def acknowledge(self, stream: str, next_sequence: int, dropped: list[Dropped]) -> None:
        """Delete what the hub has.

        Args:
            stream: Whose.
            next_sequence: Number of the first sample that it does not have.
            dropped: What it was told will never come.
        """
        with self._lock:
            if dropped:
                told = set(dropped)
                self._dropped = [each for each in self._dropped if each not in told]
                self._keep_dropped()
            for file in list(self._files):
                if file.header.stream != stream:
                    continue
                first, last = file.numbers
                if next_sequence <= last or file is self._open:
                    file.numbers = NumberRange(max(first, next_sequence), last)
                    if file is not self._open or next_sequence <= last:
                        continue
                    if file.size_bytes < self._file_bytes // 2:
                        continue
                    self._close_file()
                self._files.remove(file)
                self._delete(file)

    def close(self) -> None:
        """Leave it to the next agent."""
        with self._lock:
            self._close_file()
            os.close(self._lock_descriptor)

    def _write(self, record: SpooledSample) -> None:
        content = framed(msgspec.msgpack.encode(record))
        file = self._open
        if file is not None and file.size_bytes + len(content) > self._file_bytes:
            self._close_file()
            file = None
        if file is None:
            file = self._new_file(record.sequence)
        _write_whole(self._descriptor, content)
        file.size_bytes += len(content)
        file.read().append(record)
        file.numbers = NumberRange(file.numbers.first, record.sequence)

    def _new_file(self, sequence: int) -> _SpoolFile:
        path = self._folder / f"{self._next_file:010}{SUFFIX}"
        descriptor = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        head = framed(msgspec.msgpack.encode(self._header))
        try:
            _write_whole(descriptor, head)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._next_file += 1
        self._descriptor = descriptor
        file = _SpoolFile(path, self._header, len(head), NumberRange(sequence, sequence - 1))
        file.samples = []
        self._open = file
        self._files.append(file)
        return file

    def _close_file(self) -> None:
        if self._open is not None:
            os.close(self._descriptor)
            self._open.samples = None
            self._open = None

    def _make_room(self) -> None:
        while self.size_bytes > self._max_bytes and len(self._files) > 1:
            file = self._files.popleft()
            self._delete(file)
            if file.numbers.size > 0:
                self._drop(file.header.stream, file.numbers)
            if not self._room_is_told:
                self._room_is_told = True
                logger.warning(
                    "%s: full with %d bytes: the oldest samples are dropped and counted until a "
                    "hub takes them",
                    self._folder,
                    self._max_bytes,
                )

    def _drop(self, stream: str, numbers: NumberRange) -> None:
        self.num_dropped += numbers.size
        last = self._dropped[-1] if self._dropped else None
        if last is not None and last.stream == stream and last.last + 1 == numbers.first:
            self._dropped[-1] = Dropped(stream, last.first, numbers.last)
        else:
            self._dropped.append(Dropped(stream, *numbers))
        self._keep_dropped()

    def _keep_dropped(self) -> None:
        """For the next agent; where the disk is full it is known as long as this one lives."""
        path = self._folder / DROPPED_FILE
        new = path.with_suffix(".new")
        with suppress(OSError):
            with open(new, "wb", opener=private) as file:
                file.write(msgspec.json.encode(self._dropped))
            new.replace(path)

    def _delete(self, file: _SpoolFile) -> None:
        with suppress(FileNotFoundError):
            file.path.unlink()

    def _complain(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "%s: cannot be written: %s; samples are dropped and counted until it can",
                self._folder,
                error.strerror,
            )


def _number(path: Path) -> int:
    """Of a file, whether it can be read or not: no new one takes its name."""
    return int(path.stem) if path.stem.isdecimal() else 0


def _write_whole(descriptor: int, content: bytes) -> None:
    """Write all of it, or raise OSError; what was torn is the last of its file."""
    if os.write(descriptor, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _first(
    waiting: list[SpooledSample], max_samples: int, max_bytes: int
) -> Iterator[SpooledSample]:
    size_bytes = 0
    for number, sample in enumerate(waiting[:max_samples]):
        size_bytes += len(sample.sample)
        if number and size_bytes > max_bytes:
            return
        yield sample


def _samples(content: bytes) -> Iterator[SpooledSample]:
    records = records_in(content)
    next(records, None)
    for found in records:
        yield msgspec.msgpack.decode(found.record, type=SpooledSample)


def _earlier(folder: Path) -> Iterator[_SpoolFile]:
    """Files of earlier agents, oldest first; what a crash has torn is no sample."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            content = path.read_bytes()
            head = next(records_in(content), None)
            samples = list(_samples(content))
            if head is not None and samples:
                header = msgspec.msgpack.decode(head.record, type=SpoolHeader)
                numbers = NumberRange(samples[0].sequence, samples[-1].sequence)
                yield _SpoolFile(path, header, len(content), numbers)
                continue
            path.unlink()
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s: left out: %s", path, error)


def _read_dropped(path: Path) -> list[Dropped]:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=list[Dropped])
    return []
