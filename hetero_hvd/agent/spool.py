"""Samples that wait on this node's disk until the hub has them; so many as there is room for.

Each life of an agent is a stream of its own, so that no number is given twice whatever a crash has
torn. Files hold samples of one stream and are deleted as a whole, once all of them are
acknowledged, or the oldest one where there is no room: what was dropped is known by its numbers.
Each sample says itself all that is to be known of it, so that damage costs what it touches.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.agent.spool_file import SUFFIX, SpooledSample, SpoolFile, earlier_files, small_file
from hetero_hvd.core.recording.framing import framed
from hetero_hvd.core.recording.sequences import FIRST, NumberRange
from hetero_hvd.discovery.hub_link import Dropped
from hetero_hvd.run.recordings.damaged_files import PASSING, set_aside
from hetero_hvd.run.records.run_files import FOLDER_MODE, lock_folder, private

logger = logging.getLogger(__name__)

DROPPED_FILE = "dropped"
HUB_FILE = "hub"
DEFAULT_MAX_BYTES = 256 * 2**20
FILE_RATIO = 1 / 64
"""Of all room: so much of it is lost at once."""

MAX_FILE_BYTES, MIN_FILE_BYTES = 2**20, 2**12

BOOT_CHARACTERS = 8
"""Of a stream's name, which say in which start of the machine it was."""


class Spooled(NamedTuple):
    """What is to be sent next.

    Attributes:
        stream: Of all.
        samples: At least one; their numbers follow each other.
        wall_offset_seconds: What the wall clock showed more than the clock of their boot, as far as
            the stream tells that last; None: that boot goes on.
    """

    stream: str
    samples: list[SpooledSample]
    wall_offset_seconds: float | None


class SampleSpool:
    """The spool of one agent. Any thread may call it.

    Args:
        folder: Its own; made if it is not there.
        boot: Which start of the machine this is.
        wall_offset: Tells what the wall clock shows more than that since boot, now: it may be set.
        max_bytes: Of all files.

    Attributes:
        stream: Identity of this life's stream.
        num_dropped: Samples that were dropped in this life.

    Raises:
        OSError: The folder cannot be made, or another agent has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        wall_offset: Callable[[], float],
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
        self._boot = boot.replace("-", "")[:BOOT_CHARACTERS]
        self._wall_offset = wall_offset
        self.stream = f"{self._boot}-{secrets.token_hex(8)}"
        self._files: deque[SpoolFile] = deque(earlier_files(folder))
        self._open: SpoolFile | None = None
        self._descriptor = -1
        self._next_sequence = FIRST
        self._next_file = 1 + max(map(_number, folder.glob(f"*{SUFFIX}*")), default=0)
        self._dropped: list[Dropped] = list(_read_dropped(folder / DROPPED_FILE))
        self._is_failing = False
        self._room_is_told = False
        self.num_dropped = 0

    @property
    def hub(self) -> str:
        """Identity of the hub that has taken samples last; empty: none has."""
        for record in small_file(self._folder / HUB_FILE):
            return record.decode()
        return ""

    @hub.setter
    def hub(self, identity: str) -> None:
        if identity != self.hub:
            self._keep(HUB_FILE, framed(identity.encode()))

    @property
    def size_bytes(self) -> int:
        """Of all that waits."""
        return sum(file.size_bytes for file in list(self._files))

    def append(self, at_seconds: float, sample: bytes) -> None:
        """Take a sample in; what there is no room for is dropped and counted. Never raises."""
        with self._lock:
            sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
            record = SpooledSample(self.stream, sequence, at_seconds, self._wall_offset(), sample)
            try:
                self._write(record)
            except OSError as error:
                self._leave_file()
                self._drop(self.stream, NumberRange(sequence, sequence))
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
                waiting = self._waiting_in(file)
                if waiting:
                    samples = list(_first(waiting, max_samples, max_bytes))
                    return Spooled(file.stream, samples, self._ended_offset(file.stream))
                if file is self._open:
                    return None
                self._forget(self._files.popleft())
            return None

    def _waiting_in(self, file: SpoolFile) -> list[SpooledSample]:
        """What is to be sent of a file; what is lost before that is dropped."""
        try:
            waiting = [each for each in file.read() if each.sequence >= file.numbers.first]
        except OSError as error:
            if error.errno in PASSING:
                raise
            file.tell_damage(f"cannot be read: {error.strerror}")
            return []
        if waiting and waiting[0].sequence > file.numbers.first:
            self._drop(file.stream, NumberRange(file.numbers.first, waiting[0].sequence - 1))
            file.numbers = NumberRange(waiting[0].sequence, file.numbers.last)
        return waiting

    def _ended_offset(self, stream: str) -> float | None:
        """As of `Spooled`. What was set wrong is set right later, so the last one is believed."""
        if stream.partition("-")[0] == self._boot:
            return None
        last = next(each for each in reversed(self._files) if each.stream == stream)
        return last.wall_offset_seconds

    def dropped(self) -> list[Dropped]:
        """What will never be sent, as far as it is not acknowledged and nothing before it waits."""
        with self._lock:
            waiting = [(f.stream, f.numbers) for f in self._files if f.numbers.size > 0]
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
                if file.stream != stream:
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
        file.add(record, len(content))

    def _new_file(self, sequence: int) -> SpoolFile:
        path = self._folder / f"{self._next_file:010}{SUFFIX}"
        self._descriptor = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._next_file += 1
        file = SpoolFile(path, self.stream, NumberRange(sequence, sequence - 1))
        file.begin()
        self._open = file
        self._files.append(file)
        return file

    def _close_file(self) -> None:
        if self._open is not None:
            os.close(self._descriptor)
            self._open.forget()
            self._open = None

    def _leave_file(self) -> None:
        """Write no more to a file to which nothing more could be written; half a sample goes."""
        file = self._open
        if file is None:
            return
        with suppress(OSError):
            os.ftruncate(self._descriptor, file.size_bytes)
        self._close_file()
        if not file.numbers.size:  # a disk that is full for a night gets no file for each sample
            self._files.remove(file)
            self._delete(file)

    def _make_room(self) -> None:
        while self.size_bytes > self._max_bytes and len(self._files) > 1:
            self._forget(self._files.popleft())
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
        content = b"".join(framed(msgspec.msgpack.encode(each)) for each in self._dropped)
        self._keep(DROPPED_FILE, content)

    def _keep(self, name: str, content: bytes) -> None:
        """For the next agent; where the disk is full it is known as long as this one lives."""
        new = self._folder / f"{name}.new"
        with suppress(OSError):
            with open(new, "wb", opener=private) as file:
                file.write(content)
            new.replace(self._folder / name)

    def _forget(self, file: SpoolFile) -> None:
        """Delete a file, and drop what waits in it."""
        self._delete(file)
        if file.numbers.size > 0:
            self._drop(file.stream, file.numbers)

    def _delete(self, file: SpoolFile) -> None:
        with suppress(OSError):  # the hub drops what is sent again
            if file.is_damaged:
                set_aside(file.path)
            else:
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
    for number, sample in enumerate(waiting[:max_samples], waiting[0].sequence):
        size_bytes += len(sample.sample)
        is_full = sample is not waiting[0] and size_bytes > max_bytes
        if is_full or sample.sequence != number:
            return
        yield sample


def _read_dropped(path: Path) -> Iterator[Dropped]:
    for record in small_file(path):
        with suppress(msgspec.DecodeError):
            yield msgspec.msgpack.decode(record, type=Dropped)
