"""The files of a hub's store, read as far as they are whole: damage is told once and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from hetero_hvd.core.recording.segments import Recorded, decode_piece
from hetero_hvd.errors import JobError, MalformedDataError
from hetero_hvd.hub.storage.index import StoredPiece
from hetero_hvd.hub.storage.journal import JournalPart, journal_path, read_journal
from hetero_hvd.hub.storage.sealing import NEW
from hetero_hvd.run.recordings.damaged_files import PASSING, kept_name, set_aside
from hetero_hvd.run.records.run_files import regular

logger = logging.getLogger(__name__)

SEGMENTS, SEGMENT = "segments", ".segment"
MAX_FIGURES = 8
"""That are named in a line."""

Content = TypeVar("Content")


class StoreFiles:
    """Journals and segments.

    Args:
        folder: Of the store.
        is_known: Told the number of a segment, whether it was not deleted.

    Attributes:
        segments: Folder of the segments.
        num_damaged: Files that were found damaged.
    """

    def __init__(self, folder: Path, is_known: Callable[[int], bool]) -> None:
        self._folder = folder
        self._is_known = is_known
        self.segments = folder / SEGMENTS
        self.num_damaged = 0
        self._damaged_journals: set[int] = set()
        self._damaged_pieces: set[StoredPiece] = set()

    def segment_path(self, number: int) -> Path:
        """Where a segment is."""
        return self.segments / f"{number:010}{SEGMENT}"

    def segment_numbers(self) -> list[int]:
        """Those that are there."""
        found = self.segments.glob(f"*{SEGMENT}")
        return [int(path.stem) for path in found if path.stem.isdecimal()]

    def remove_torn(self, known: set[int], last_sealed: int) -> None:
        """Take away segments that a hub had begun to write, or to delete, when it was killed.

        Args:
            known: Numbers of those that the index knows.
            last_sealed: Number of the newest journal that the index knows as sealed.
        """
        for path in self.segments.glob(f"*{NEW}"):
            path.unlink()
        for number in self.segment_numbers():
            if number <= last_sealed and number not in known:
                self.segment_path(number).unlink()

    def journal(self, number: int, parts: Iterable[JournalPart] | None = None) -> bytes:
        """All of a journal, or some parts of it; nothing: it cannot be read, which is told.

        Raises:
            OSError: It cannot be read now.
        """
        path = journal_path(self._folder, number)
        try:
            return read_journal(path, parts)
        except OSError as error:
            if error.errno in PASSING:
                raise
            self._tell(number, f"cannot be read: {error.strerror}")
            return b""

    def tell_left_out(self, number: int, damaged_bytes: int) -> None:
        """Say that some bytes of a journal are in no entry, if there are any.

        Args:
            number: Of the journal.
            damaged_bytes: How many.
        """
        if damaged_bytes:
            words = "bytes are left out: the end was torn, or the file is damaged"
            self._tell(number, f"{damaged_bytes} {words}")

    def is_damaged(self, number: int) -> bool:
        """Whether that was said of a journal."""
        return number in self._damaged_journals

    def remove_journal(self, number: int) -> None:
        """It is sealed, or cannot be: delete it, or set it aside if it is damaged.

        Raises:
            OSError: The disk refuses that.
        """
        path = journal_path(self._folder, number)
        if self.is_damaged(number):
            set_aside(path)
        else:
            path.unlink()

    def _tell(self, number: int, why: str) -> None:
        if number not in self._damaged_journals:
            self._damaged_journals.add(number)
            self.num_damaged += 1
            path = journal_path(self._folder, number)
            logger.warning("%s: %s; it is kept as %s", path, why, kept_name(path))

    def read_piece(self, piece: StoredPiece, decode: Callable[[bytes], Content]) -> Content | None:
        """What is in a piece; None: it was deleted, or is gone or damaged, which is told.

        Raises:
            JobError: It cannot be read now.
        """
        path = self.segment_path(piece.segment)
        try:
            with open(path, "rb", opener=regular) as file:
                file.seek(piece.place)
                return decode(file.read(piece.length))
        except (MalformedDataError, MemoryError, OverflowError) as error:
            why = str(error)
        except OSError as error:
            if error.errno in PASSING:
                raise JobError(f"{path}: cannot be read: {error.strerror}") from error
            if isinstance(error, FileNotFoundError) and not self._is_known(piece.segment):
                return None  # it was deleted while it was about to be read
            why = str(error.strerror)
        self._tell_piece(piece, f"are left out: {why}")
        return None

    def samples_of(self, piece: StoredPiece) -> list[Recorded]:
        """What is whole of a piece: of a figure that is damaged none of its samples tells.

        Raises:
            JobError: It cannot be read now.
        """
        lost: set[str] = set()
        found = self.read_piece(piece, lambda content: list(decode_piece(content, lost)))
        if found and lost:
            figures = ", ".join(sorted(place[1:] for place in lost)[:MAX_FIGURES])
            more = f" and {n} more" if (n := len(lost) - MAX_FIGURES) > 0 else ""
            self._tell_piece(piece, f"do not tell {figures}{more}, which is damaged")
        return found or []

    def _tell_piece(self, piece: StoredPiece, what: str) -> None:
        if piece not in self._damaged_pieces:
            self.num_damaged += all(each.segment != piece.segment for each in self._damaged_pieces)
            self._damaged_pieces.add(piece)
            path = self.segment_path(piece.segment)
            logger.warning("%s: %d samples of %s %s", path, piece.num_samples, piece.node, what)
