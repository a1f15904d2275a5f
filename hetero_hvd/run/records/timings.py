"""The raw timings of a run: append-only segments of JSON lines, bounded in size.

The newest segment is timings.jsonl; older ones are numbered. Each begins with the membership that
its timings belong to, so it can be read without the ones before.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages import StepsTimed, WorkersJoined, event_from_json, event_to_json
from hetero_hvd.run.records.run_files import LISTED, regular

logger = logging.getLogger(__name__)

FILE = "timings.jsonl"
SEGMENT_BYTES = 16 * 2**20
MAX_SEGMENTS = 4
"""The oldest ones are removed: what a run does now matters more than how it began."""

Timing = WorkersJoined | StepsTimed
_TIME = b'{"at_unix_seconds":'
_CLOSED = re.compile(r"timings-\d{6,}\.jsonl")


class TimingLog:
    """Writes the segments. A line is one system call: what it wrote survives the process.

    Args:
        folder: Of the run.
        segment_bytes: A segment that has reached this size is closed.
        say: Tells people of what cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file = KeptFile(folder / FILE, say).touch()
        self._joined: tuple[float, WorkersJoined] | None = None

    def observe(self, at_unix_seconds: float, event: object) -> None:
        """Append an event if it is a membership or its timings; an observer of the bus."""
        if isinstance(event, WorkersJoined | StepsTimed):
            self.write(at_unix_seconds, event)

    def write(self, at_unix_seconds: float, event: Timing) -> None:
        """Append an event.

        Args:
            at_unix_seconds: When it was heard of, seconds since 1970.
            event: What was measured.
        """
        if isinstance(event, WorkersJoined):
            self._joined = at_unix_seconds, event
        elif self._file.size_bytes >= self._segment_bytes:
            self._rotate()
        self._file.append(_line(at_unix_seconds, event))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        closed = _closed(self._folder)
        number = int(closed[-1].stem.rpartition("-")[2]) + 1 if closed else 1
        try:
            (self._folder / FILE).rename(self._folder / f"timings-{number:06}.jsonl")
            for path in closed[: len(closed) + 2 - MAX_SEGMENTS]:
                path.unlink()
        except OSError as error:  # the segment becomes longer, or there are more
            logger.warning("%s: cannot be put aside: %s", self._folder / FILE, error)
        self._file.reopen()
        if self._joined is not None:
            self._file.append(_line(*self._joined))


def read_timings(run: Path) -> Iterator[tuple[float, Timing]]:
    """What is kept of a run's timings, oldest first, each with its time; 0.0: it was not kept.

    The torn last line of a driver that was killed is left out.

    Args:
        run: Output folder of a run, or one file of timings.

    Raises:
        JobError: There are no timings, or a complete line is none.
    """
    with ExitStack() as stack:
        try:  # opened before the others are listed: what is closed meanwhile is not missed
            path = run / FILE if run.is_dir() else run
            newest = stack.enter_context(open(path, "rb", opener=regular))
        except OSError as error:
            newest = None  # its writer is between two segments, or was killed there
            why = f"{run}: no run is recorded there ({FILE}: {error.strerror}); {LISTED}"
        closed = list(takewhile(lambda path: not _is_same(path, newest), _closed(run)))
        if newest is None and not closed:
            raise JobError(why)
        known = None
        for at_unix_seconds, event in chain(*map(_closed_segment, closed), _segment(newest)):
            if isinstance(event, WorkersJoined):
                if event == known:
                    continue  # said again at the head of a segment
                known = event
            yield at_unix_seconds, event


def size_bytes(run: Path) -> int:
    """Of all that is kept of a run's timings; what its writer removes meanwhile does not count."""
    sizes = []
    for path in (*_closed(run), run / FILE):
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def _closed(folder: Path) -> list[Path]:
    """What has another name is somebody else's, such as a copy that a user has made."""
    return sorted(path for path in folder.glob("timings-*.jsonl") if _CLOSED.fullmatch(path.name))


def _line(at_unix_seconds: float, event: Timing) -> bytes:
    return b"%s%.3f,%s\n" % (_TIME, at_unix_seconds, event_to_json(event)[1:])


def _is_same(path: Path, file: BinaryIO | None) -> bool:
    try:
        return file is not None and os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def _closed_segment(path: Path) -> Iterator[tuple[float, Timing]]:
    try:
        file = open(path, "rb", opener=regular)  # noqa: SIM115
    except OSError:  # its writer has just removed it
        return
    with file:
        yield from _segment(file)


def _segment(file: BinaryIO | None) -> Iterator[tuple[float, Timing]]:
    """What is in a segment now: its writer may be faster than we."""
    if file is None:
        return
    for number, line in enumerate(file.read().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        at_unix_seconds = 0.0
        try:
            if line.startswith(_TIME):
                head, _, rest = line.partition(b",")
                at_unix_seconds, line = float(head[len(_TIME) :]), b"{" + rest  # noqa: PLW2901
            event = event_from_json(line)
        except (msgspec.DecodeError, ValueError) as error:
            raise JobError(
                f"{file.name}:{number}: is no event of a run: the file is damaged, or another one"
            ) from error
        if not isinstance(event, WorkersJoined | StepsTimed):
            raise JobError(f"{file.name}:{number}: is no timing of a run")
        yield at_unix_seconds, event
