"""All that the hub keeps: journals, sealed segments and their index; stored once, read by anybody.

A batch is written to the journal, and only then acknowledged. A journal that is large or old is
sealed: its samples become columns in a segment, the index learns of them in one transaction, and
the journal is deleted. Whatever a crash leaves half-done is done again from the journal.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from hetero_hvd.core.recording.framing import damaged_bytes
from hetero_hvd.core.recording.segments import Recorded, decode_piece
from hetero_hvd.core.recording.sequences import FIRST, NumberRange, accept
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS, aligned, new_anchor
from hetero_hvd.discovery.hub_link import SampleBatch
from hetero_hvd.errors import JobError, MalformedDataError, job_error
from hetero_hvd.hub.index import HubIndex, StoredPiece, StoredStream, StreamState
from hetero_hvd.hub.journal import (
    Journal,
    JournalEntry,
    entries_in,
    frames_of,
    journal_numbers,
    journal_path,
    read_journal,
)
from hetero_hvd.hub.sealing import NEW, Sealer, seal_here
from hetero_hvd.run.records.run_files import FOLDER_MODE, lock_folder, regular

logger = logging.getLogger(__name__)

SEAL_BYTES = 64 * 2**20
SEAL_SECONDS = 3600.0
SEGMENTS, SEGMENT = "segments", ".segment"
Content = TypeVar("Content")
NO_STREAM = StreamState("", FIRST, 0, 0, 0)


class NodeBatch(NamedTuple):
    """A batch, and who has sent it.

    Attributes:
        node: Its node.
        batch: What it has sent.
    """

    node: str
    batch: SampleBatch


class NodeFrame(NamedTuple):
    """A sample as it is stored.

    Attributes:
        node: Whose.
        stream: Of which life of its agent.
        recorded: The sample.
    """

    node: str
    stream: str
    recorded: Recorded


class SampleStore:
    """The store of one hub. `commit` and `seal` have a thread each; all else any thread may call.

    Args:
        folder: Of the hub; made if it is not there.
        boot: Which start of this machine it is.
        clock: Time since that.
        wall_clock: Seconds since 1970; only looked at once.
        seal_bytes: Of a journal.
        sealer: Makes a segment of one.

    Attributes:
        latest: The newest sample of each node.
        num_duplicates: Samples that were sent again.
        num_ahead: Samples from the future, that bear the time of their arrival.

    Raises:
        JobError: Another hub has the folder, or it cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        seal_bytes: int = SEAL_BYTES,
        sealer: Sealer = seal_here,
    ) -> None:
        self.folder = folder
        self._segments = folder / SEGMENTS
        self._clock = clock
        self._seal_bytes = seal_bytes
        self._sealer = sealer
        self._lock = threading.Lock()
        self.latest: dict[str, NodeFrame] = {}
        self.num_duplicates = 0
        self.num_ahead = 0
        try:
            self._held = self._locked()
            try:
                self._open(boot, wall_clock)
            except BaseException:
                os.close(self._held)
                raise
        except OSError as error:
            raise job_error(f"{folder}: cannot be used: {error.strerror}", error) from error

    def _locked(self) -> int:
        """Have the folder alone.

        Raises:
            JobError: Another hub has it.
        """
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._segments.mkdir(mode=FOLDER_MODE, exist_ok=True)
        lock = lock_folder(self.folder)
        if lock is None:
            raise JobError(
                f"{self.folder}: another hub has it; end that one, or give another --store"
            )
        return lock

    def _open(self, boot: str, wall_clock: Callable[[], float]) -> None:
        self.index = HubIndex(self.folder)
        try:
            self._go_on(boot, wall_clock)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self.index.damaged(error) from error

    def _go_on(self, boot: str, wall_clock: Callable[[], float]) -> None:
        """Where the hub before this one has ended."""
        self._streams = self.index.streams()
        self._remove_torn()
        self._replay()
        newest = max((state.newest for state in self._streams.values()), default=0)
        self._anchor = new_anchor(
            self.index.anchor,
            boot=boot,
            at_seconds=self._clock(),
            wall_seconds=wall_clock(),
            newest_seconds=newest / MICROSECONDS,
        )
        self.index.set_anchor(self._anchor)

    def _remove_torn(self) -> None:
        """Segments that a hub had begun to write, or to delete, when it was killed."""
        known = {segment.number for segment in self.index.segments()}
        sealed = self.index.last_sealed
        for path in self._segments.glob(f"*{NEW}"):
            path.unlink()
        for number in self._segment_numbers():
            if number <= sealed and number not in known:
                self._segment_path(number).unlink()

    def _segment_numbers(self) -> list[int]:
        found = self._segments.glob(f"*{SEGMENT}")
        return [int(path.stem) for path in found if path.stem.isdecimal()]

    def _replay(self) -> None:
        """Go on with what the journals hold; those that were sealed are of no more use."""
        sealed = self.index.last_sealed
        numbers = journal_numbers(self.folder)
        for number in numbers:
            if number <= sealed:
                journal_path(self.folder, number).unlink()
                continue
            content = read_journal(journal_path(self.folder, number))
            if lost := damaged_bytes(content):
                logger.warning(
                    "%s: %d bytes are left out: the end was torn, or the file is damaged",
                    journal_path(self.folder, number),
                    lost,
                )
            for entry in entries_in(content):
                self._note(entry)
        # A segment that nobody knows, as the index was lost, is not written over.
        others = [number + 1 for number in self._segment_numbers() if number not in numbers]
        self._journal = Journal(self.folder, max([sealed + 1, *numbers, *others]))
        self._began_seconds = self._clock()

    def now_seconds(self) -> float:
        """The hub's clock, seconds since 1970."""
        return self._anchor.at(self._clock())

    def now_microseconds(self) -> int:
        """The same as times are stored."""
        return round(self.now_seconds() * MICROSECONDS)

    def streams(self) -> dict[str, StreamState]:
        """How far each is stored."""
        with self._lock:
            return dict(self._streams)

    def next_sequence(self, stream: str) -> int:
        """Number of the first sample of a stream that is not stored."""
        return self._streams.get(stream, NO_STREAM).next_sequence

    def nodes(self) -> set[str]:
        """Names of those of which an agent has told."""
        streams = dict(self._streams)
        return {s.node for name, s in streams.items() if name != f"http-{s.node}"}

    def is_of_an_agent(self, node: str) -> bool:
        """Whether an agent has told of a node of this name."""
        return node in self.nodes()

    def commit(self, batches: Sequence[NodeBatch]) -> list[int]:
        """Store batches.

        Returns:
            Number of the first sample that is not stored, for the stream of each.

        Raises:
            OSError: The disk does not take them; nothing is stored.
        """
        before: dict[str, StreamState] = {}
        entries: list[JournalEntry] = []
        with self._lock:
            latest = dict(self.latest)
            counts = self.num_duplicates, self.num_ahead
            for node, batch in batches:
                for entry in self._entries(node, batch):
                    before.setdefault(entry.stream, self._streams.get(entry.stream, NO_STREAM))
                    self._note(entry)
                    entries.append(entry)
            try:
                if entries:
                    self._journal.append(entries)
            except OSError:
                self._streams |= before
                for stream in [name for name, state in before.items() if state is NO_STREAM]:
                    del self._streams[stream]
                self.latest = latest
                self.num_duplicates, self.num_ahead = counts
                raise
            return [
                self._streams.get(batch.stream, NO_STREAM).next_sequence for _, batch in batches
            ]

    def _entries(self, node: str, batch: SampleBatch) -> Iterator[JournalEntry]:
        """What is new in a batch."""
        state = self._streams.get(batch.stream, NO_STREAM)
        accepted = accept(state.next_sequence, batch.first, len(batch.samples))
        skip = accepted.num_duplicates
        self.num_duplicates += skip
        if skip < len(batch.samples):
            times = aligned(
                batch.times_seconds[skip:],
                batch.offset_seconds,
                after_microseconds=state.newest,
                now_microseconds=self.now_microseconds(),
            )
            self.num_ahead += times.num_ahead
            missing = (
                []
                if accepted.missing is None
                else [(accepted.missing.first, accepted.missing.last)]
            )
            samples = batch.samples[skip:]
            first = batch.first + skip
            yield JournalEntry(batch.stream, node, first, times.microseconds, samples, missing)
        for each in batch.dropped:
            known = self._streams.get(each.stream, NO_STREAM).next_sequence
            if each.stream == batch.stream:
                known = max(known, accepted.next_sequence)
            if each.last >= known:  # it is told when nothing before it waits any more
                gap = (known, each.last)
                yield JournalEntry(each.stream, node, known, [], [], [gap])

    def _note(self, entry: JournalEntry) -> None:
        state = self._streams.get(entry.stream, NO_STREAM)
        self._streams[entry.stream] = StreamState(
            entry.node,
            max(state.next_sequence, entry.next_sequence),
            entry.times[-1] if entry.times else state.newest,
            state.num_samples + len(entry.samples),
            state.num_missing + sum(each.size for each in entry.ranges),
        )
        if entry.samples:
            last = Recorded(
                entry.first + len(entry.samples) - 1, entry.times[-1], entry.samples[-1]
            )
            known = self.latest.get(entry.node)
            if known is None or known.recorded.at_microseconds <= last.at_microseconds:
                self.latest[entry.node] = NodeFrame(entry.node, entry.stream, last)

    @property
    def is_seal_due(self) -> bool:
        """Whether the journal is large or old."""
        size_bytes = self._journal.size_bytes
        is_old = self._clock() - self._began_seconds >= SEAL_SECONDS
        is_behind = len(journal_numbers(self.folder)) > 1
        return size_bytes >= self._seal_bytes or (is_old and size_bytes > 0) or is_behind

    def seal(self) -> None:
        """Put the samples of all journals but a new one into segments.

        Raises:
            OSError: The disk does not take them; the journals stay.
        """
        with self._lock:
            if self._journal.size_bytes:
                following = Journal(self.folder, self._journal.number + 1)
                self._journal.close()
                self._journal = following
                self._began_seconds = self._clock()
            current = self._journal.number
        for number in journal_numbers(self.folder):
            if number < current:
                self._seal(number)

    def _seal(self, number: int) -> None:
        path = journal_path(self.folder, number)
        if number > self.index.last_sealed:
            sealed = self._sealer(path, self._segment_path(number), number)
            known = self.index.streams()
            streams = {
                name: _joined(known.get(name, NO_STREAM), added)
                for name, added in sealed.streams.items()
            }
            with self._lock:  # a reader finds each sample in one place
                self.index.seal(number, sealed.pieces, streams, sealed.gaps)
        path.unlink()

    def _segment_path(self, number: int) -> Path:
        return self._segments / f"{number:010}{SEGMENT}"

    def frames(self, session: RecordingSession) -> Iterator[NodeFrame]:
        """The samples of a session, stream by stream in their order.

        Those of a segment that is gone or damaged are a gap, which is told.

        Raises:
            JobError: A segment cannot be read now.
        """
        for found in self.stored(session):
            for piece in found.pieces:
                for frame in self.read_piece(piece, _all_of) or ():
                    if session.has(found.node, frame.at_microseconds):
                        yield NodeFrame(found.node, found.stream, frame)
            for frame in found.waiting:
                if session.has(found.node, frame.at_microseconds):
                    yield NodeFrame(found.node, found.stream, frame)

    def stored(self, session: RecordingSession) -> list[StoredStream]:
        """Where the samples of a session are, by node and begin; some of others are among them."""
        with self._lock:
            sealed = self.index.last_sealed
            numbers = [n for n in journal_numbers(self.folder) if n > sealed]
            journals = [read_journal(journal_path(self.folder, number)) for number in numbers]
            pieces = self.index.pieces(session)
        found: dict[tuple[str, str], StoredStream] = {}
        for piece in pieces:
            key = (piece.node, piece.stream)
            found.setdefault(key, StoredStream(*key, [], [])).pieces.append(piece)
        for content in journals:
            for entry in entries_in(content):
                key = (entry.node, entry.stream)
                if not session.nodes or entry.node in session.nodes:
                    found.setdefault(key, StoredStream(*key, [], [])).waiting.extend(
                        frames_of(entry)
                    )
        there = [each for each in found.values() if each.pieces or each.waiting]
        return sorted(there, key=lambda each: (each.node, each.begin))

    def read_piece(self, piece: StoredPiece, decode: Callable[[bytes], Content]) -> Content | None:
        """What is in a piece; None: it is gone or damaged, which is told.

        Raises:
            JobError: It cannot be read now.
        """
        path = self._segment_path(piece.segment)
        try:
            with open(path, "rb", opener=regular) as file:
                file.seek(piece.place)
                return decode(file.read(piece.length))
        except (FileNotFoundError, MalformedDataError, MemoryError, OverflowError) as error:
            logger.warning(
                "%s: %d samples of %s are left out: %s", path, piece.num_samples, piece.node, error
            )
            return None
        except OSError as error:
            raise JobError(f"{path}: cannot be read: {error.strerror}") from error

    def delete_segment(self, number: int) -> None:
        """Delete the samples of a segment for good.

        Raises:
            OSError: The disk refuses that.
        """
        path = self._segment_path(number)
        try:
            self.index.forget_segment(number)
        except OSError:  # a full disk has no room to note what makes room
            path.unlink(missing_ok=True)
            self.index.forget_segment(number)
        path.unlink(missing_ok=True)

    def missing(self) -> dict[str, list[NumberRange]]:
        """What will never come, by stream."""
        found: dict[str, list[NumberRange]] = {}
        for stream, first, last in self.index.gaps():
            found.setdefault(stream, []).append(NumberRange(first, last))
        sealed = self.index.last_sealed
        for number in journal_numbers(self.folder):
            if number > sealed:
                for entry in entries_in(read_journal(journal_path(self.folder, number))):
                    if entry.missing:
                        found.setdefault(entry.stream, []).extend(entry.ranges)
        return found

    def close(self) -> None:
        """Leave the folder to the next hub."""
        self._journal.close()
        with suppress(OSError):
            os.close(self._held)


def _all_of(content: bytes) -> list[Recorded]:
    return list(decode_piece(content))


def _joined(known: StreamState, added: StreamState) -> StreamState:
    """How far a stream is stored, with what a journal has of it."""
    return StreamState(
        added.node,
        max(known.next_sequence, added.next_sequence),
        max(known.newest, added.newest),
        known.num_samples + added.num_samples,
        known.num_missing + added.num_missing,
    )
