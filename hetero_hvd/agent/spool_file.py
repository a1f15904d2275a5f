"""The files of a spool: what is whole in them is read, whatever is damaged around it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.core.recording.framing import records_in
from hetero_hvd.core.recording.sequences import FIRST, NumberRange
from hetero_hvd.run.recordings.damaged_files import PASSING, kept_name, set_aside
from hetero_hvd.run.records.run_files import regular

logger = logging.getLogger(__name__)

SUFFIX = ".spool"


class SpooledSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample.

    Attributes:
        stream: Identity of one life of an agent.
        sequence: Its number in the stream.
        at_seconds: By the clock since boot.
        wall_offset_seconds: What the wall clock showed more than that.
        sample: As it is sent.
    """

    stream: str
    sequence: int
    at_seconds: float
    wall_offset_seconds: float
    sample: bytes


class SpoolFile:
    """A file, and where its samples are known, too: of the newest one always.

    Args:
        path: Where it is.
        stream: Of its samples; empty: it says so itself.
        numbers: Of those that wait.

    Attributes:
        path: See above.
        stream: See above.
        numbers: See above.
        size_bytes: Of it.
        wall_offset_seconds: Of its last sample.
        is_damaged: Whether anything in it is no sample of this stream.
    """

    def __init__(self, path: Path, stream: str, numbers: NumberRange) -> None:
        self.path = path
        self.stream = stream
        self.numbers = numbers
        self.size_bytes = 0
        self.wall_offset_seconds = 0.0
        self.is_damaged = False
        self._samples: list[SpooledSample] | None = None

    def begin(self) -> None:
        """It is new: samples are added to it."""
        self._samples = []

    def add(self, sample: SpooledSample, size_bytes: int) -> None:
        """It has one more.

        Args:
            sample: Is written to it.
            size_bytes: So many were written.
        """
        self.read().append(sample)
        self.size_bytes += size_bytes
        self.numbers = NumberRange(self.numbers.first, sample.sequence)
        self.wall_offset_seconds = sample.wall_offset_seconds

    def forget(self) -> None:
        """Hold no samples: they are read again when they are due."""
        self._samples = None

    def read(self) -> list[SpooledSample]:
        """Its samples, as far as they are whole, in order.

        Raises:
            OSError: It cannot be read.
        """
        if self._samples is None:
            self._samples = self._read()
        return self._samples

    def _read(self) -> list[SpooledSample]:
        content = read_content(self.path)
        damaged_bytes = len(content)
        found: dict[int, SpooledSample] = {}
        for record in records_in(content, past_damage=True):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                sample = msgspec.msgpack.decode(record.record, type=SpooledSample)
                self.stream = self.stream or sample.stream
                if sample.stream == self.stream:
                    found[sample.sequence] = sample
                    damaged_bytes -= record.size_bytes
        if damaged_bytes:
            self.tell_damage(
                f"{damaged_bytes} of {len(content)} bytes are no samples: its end was torn, or it "
                "is damaged"
            )
        return [found[number] for number in sorted(found)]

    def tell_damage(self, why: str) -> None:
        """Say what is wrong with it, once.

        Args:
            why: In words.
        """
        if not self.is_damaged:
            self.is_damaged = True
            logger.warning("%s: %s; it is kept as %s", self.path, why, kept_name(self.path))


def earlier_files(folder: Path) -> Iterator[SpoolFile]:
    """Files of earlier agents, oldest first.

    Raises:
        OSError: One cannot be read now.
    """
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        file = SpoolFile(path, "", NumberRange(FIRST, FIRST - 1))
        try:
            samples = file.read()
            file.size_bytes = path.stat().st_size
        except OSError as error:
            if error.errno in PASSING:
                raise
            samples = []
            file.tell_damage(f"cannot be read: {error.strerror}")
        if samples:
            file.numbers = NumberRange(samples[0].sequence, samples[-1].sequence)
            file.wall_offset_seconds = samples[-1].wall_offset_seconds
            file.forget()
            yield file
        else:
            with suppress(OSError):
                set_aside(path) if file.is_damaged else path.unlink()


def small_file(path: Path) -> Iterator[bytes]:
    """The records of a file of few; what is damaged is told, and the file set aside."""
    try:
        content = read_content(path)
        records = list(records_in(content, past_damage=True))
        why = "is damaged" if sum(each.size_bytes for each in records) < len(content) else ""
    except FileNotFoundError:
        return
    except OSError as error:
        records = []
        why = f"cannot be read: {error.strerror}"
    if why:
        logger.warning("%s: %s; it is kept as %s", path, why, kept_name(path))
        with suppress(OSError):
            set_aside(path)
    yield from (each.record for each in records)


def read_content(path: Path) -> bytes:
    """All of a file.

    Raises:
        OSError: It cannot be read, or is none.
    """
    with open(path, "rb", opener=regular) as file:
        return file.read()
