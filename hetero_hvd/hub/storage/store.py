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
from typing import TypeVar

from hetero_hvd.core.recording.sequences import NumberRange
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS, new_anchor
from hetero_hvd.errors import JobError, job_error
from hetero_hvd.hub.storage.index import HubIndex, StoredPiece, StoredStream, StreamState
from hetero_hvd.hub.storage.journal import (
    Journal,
    JournalParts,
    entries_in,
    frames_of,
    holes_in,
    journal_numbers,
    journal_path,
    stored_entries,
)
from hetero_hvd.hub.storage.sealing import SealedJournal, Sealer, seal_here
from hetero_hvd.hub.storage.store_files import StoreFiles
from hetero_hvd.hub.storage.stream_ledger import (
    NO_STREAM,
    LedgerChanges,
    NodeBatch,
    NodeFrame,
    StreamLedger,
)
from hetero_hvd.run.records.run_files import FOLDER_MODE, lock_folder

__all__ = ["SEAL_BYTES", "NodeBatch", "NodeFrame", "SampleStore"]
logger = logging.getLogger(__name__)

SEAL_BYTES = 64 * 2**20
SEAL_SECONDS = 3600.0
Content = TypeVar("Content")


class SampleStore:
    """The store of one hub. `commit` and `seal` have a thread each; all else any thread may call.

    Args:
        folder: Of the hub; made if it is not there.
        boot: Which start of this machine it is.
        clock: Time since that.
        wall_clock: Seconds since 1970; only looked at once.
        seal_bytes: Of a journal.
        sealer: Makes a segment of one.

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
        self._files = StoreFiles(folder, lambda number: number in self.index.segment_numbers())
        self._clock = clock
        self._seal_bytes = seal_bytes
        self._sealer = sealer
        self._lock = threading.Lock()
        self._parts = JournalParts()
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
        self._files.segments.mkdir(mode=FOLDER_MODE, exist_ok=True)
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
        self._ledger = StreamLedger(self.index.streams())
        self._files.remove_torn(self.index.segment_numbers(), self.index.last_sealed)
        self._replay()
        newest = max((state.newest for state in self._ledger.streams.values()), default=0)
        self._anchor = new_anchor(
            self.index.anchor,
            boot=boot,
            at_seconds=self._clock(),
            wall_seconds=wall_clock(),
            newest_seconds=newest / MICROSECONDS,
        )
        self.index.set_anchor(self._anchor)

    def _replay(self) -> None:
        """Go on with what the journals hold; those that were sealed are of no more use."""
        sealed = self.index.last_sealed
        numbers = journal_numbers(self.folder)
        changes = LedgerChanges(self._ledger)
        for number in numbers:
            if number <= sealed:
                journal_path(self.folder, number).unlink()
                continue
            content = self._files.journal(number)
            damaged_bytes = len(content)
            for entry, part in stored_entries(content):
                changes.replay(entry)
                self._parts.add(number, entry.node, part)
                damaged_bytes -= part.size_bytes
            self._files.tell_left_out(number, damaged_bytes)
        self._ledger.publish(changes)
        # A segment that nobody knows, as the index was lost, is not written over.
        others = [n + 1 for n in self._files.segment_numbers() if n not in numbers]
        # Nothing is written behind what is damaged.
        others += [n + 1 for n in numbers if self._files.is_damaged(n)]
        self._journal = Journal(self.folder, max([sealed + 1, *numbers, *others]))
        self._began_seconds = self._clock()

    def now_seconds(self) -> float:
        """The hub's clock, seconds since 1970."""
        return self._anchor.at(self._clock())

    def now_microseconds(self) -> int:
        """The same as times are stored."""
        return round(self.now_seconds() * MICROSECONDS)

    @property
    def latest(self) -> dict[str, NodeFrame]:
        """The newest sample of each node."""
        return self._ledger.latest

    @property
    def num_duplicates(self) -> int:
        """Samples that were sent again."""
        return self._ledger.num_duplicates

    @property
    def num_ahead(self) -> int:
        """Samples from the future, that bear the time of their arrival."""
        return self._ledger.num_ahead

    def streams(self) -> dict[str, StreamState]:
        """How far each is stored; waits for nobody."""
        return dict(self._ledger.streams)

    def next_sequence(self, stream: str) -> int:
        """Number of the first sample of a stream that is not stored."""
        return self._ledger.next_sequence(stream)

    def nodes(self) -> set[str]:
        """Names of those of which an agent has told."""
        return {s.node for name, s in self.streams().items() if name != f"http-{s.node}"}

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
        with self._lock:
            changes = LedgerChanges(self._ledger)
            for node, batch in batches:
                changes.take(node, batch, self.now_microseconds())
            if changes.entries:
                parts = self._journal.append(changes.entries)
                for entry, part in zip(changes.entries, parts, strict=True):
                    self._parts.add(self._journal.number, entry.node, part)
            self._ledger.publish(changes)
            return [self._ledger.next_sequence(batch.stream) for _, batch in batches]

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
            try:
                sealed = self._sealer(path, self._files.segment_path(number), number)
            except OSError:
                if self._files.journal(number):
                    raise
                # It cannot be read; the others can be sealed.
            else:
                self._files.tell_left_out(number, sealed.damaged_bytes)
                self._note_sealed(number, sealed)
        self._files.remove_journal(number)
        with self._lock:
            self._parts.forget(number)

    def _note_sealed(self, number: int, sealed: SealedJournal) -> None:
        known = self.index.streams()
        streams = {
            name: _joined(known.get(name, NO_STREAM), added)
            for name, added in sealed.streams.items()
        }
        gaps = list(sealed.gaps)
        if sealed.damaged_bytes:
            next_sequences = {name: state.next_sequence for name, state in known.items()}
            for hole in holes_in(entries_in(self._files.journal(number)), next_sequences):
                (gap,) = hole.ranges
                gaps.append((hole.stream, *gap))
                state = streams[hole.stream]
                streams[hole.stream] = state._replace(num_missing=state.num_missing + gap.size)
        with self._lock:  # a reader finds each sample in one place
            self.index.seal(number, sealed.pieces, streams, gaps)

    def frames(self, session: RecordingSession) -> Iterator[NodeFrame]:
        """The samples of a session, stream by stream in their order.

        Those of a segment that is gone or damaged are a gap, which is told.

        Raises:
            JobError: A segment cannot be read now.
        """
        for found in self.stored(session):
            for piece in found.pieces:
                for frame in self._files.samples_of(piece):
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
            journals = [self._waiting(number, session) for number in numbers]
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

    def _waiting(self, number: int, session: RecordingSession) -> bytes:
        """What a journal has of a session's nodes: of all, or of those that it names."""
        parts = self._parts.of(number, session.nodes) if session.nodes else None
        return self._files.journal(number, parts)

    def read_piece(self, piece: StoredPiece, decode: Callable[[bytes], Content]) -> Content | None:
        """What is in a piece; None: it is gone or damaged, which is told.

        Raises:
            JobError: It cannot be read now.
        """
        return self._files.read_piece(piece, decode)

    @property
    def num_damaged(self) -> int:
        """Files that were found damaged since this store was opened."""
        return self._files.num_damaged

    def delete_segment(self, number: int) -> None:
        """Delete the samples of a segment for good.

        Raises:
            OSError: The disk refuses that.
        """
        path = self._files.segment_path(number)
        try:
            self.index.forget_segment(number)
        except OSError:  # a full disk has no room to note what makes room
            path.unlink(missing_ok=True)
            self.index.forget_segment(number)
        path.unlink(missing_ok=True)

    def forget_gone(self) -> None:
        """Forget streams and gaps whose samples are deleted, but the newest stream of each node.

        Raises:
            OSError: The disk refuses that.
        """
        with self._lock:
            sealed = self.index.streams()
            first_numbers = self.index.first_numbers()
            stay = self._ledger.newest_streams() | first_numbers.keys()
            going = [
                name
                for name, state in self._ledger.streams.items()
                if name not in stay and sealed.get(name) == state  # nothing of it is in a journal
            ]
            self.index.forget_streams(going, first_numbers)
            for name in going:
                del self._ledger.streams[name]

    def missing(self) -> dict[str, list[NumberRange]]:
        """What will never come, by stream."""
        found: dict[str, list[NumberRange]] = {}
        for stream, first, last in self.index.gaps():
            found.setdefault(stream, []).append(NumberRange(first, last))
        next_sequences = {n: state.next_sequence for n, state in self.index.streams().items()}
        sealed = self.index.last_sealed
        for number in journal_numbers(self.folder):
            if number > sealed:
                entries = list(entries_in(self._files.journal(number)))
                for entry in [*holes_in(entries, next_sequences), *entries]:
                    if entry.missing:
                        found.setdefault(entry.stream, []).extend(entry.ranges)
                next_sequences |= {entry.stream: entry.next_sequence for entry in entries}
        return found

    def close(self) -> None:
        """Leave the folder to the next hub."""
        self._journal.close()
        with suppress(OSError):
            os.close(self._held)


def _joined(known: StreamState, added: StreamState) -> StreamState:
    """How far a stream is stored, with what a journal has of it."""
    return StreamState(
        added.node,
        max(known.next_sequence, added.next_sequence),
        max(known.newest, added.newest),
        known.num_samples + added.num_samples,
        known.num_missing + added.num_missing,
    )
