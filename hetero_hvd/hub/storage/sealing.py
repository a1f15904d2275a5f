"""Makes a segment: `python -m hetero_hvd.hub.storage.sealing JOURNAL SEGMENT NUMBER PARENT`.

A process of its own, at the lowest priority: a minute's work on a large journal holds up no agent,
and its memory is given back. It dies with its hub: the next one seals that journal anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from hetero_hvd.core.recording.segments import encode_piece
from hetero_hvd.errors import JobError
from hetero_hvd.hub.storage.index import StoredPiece, StreamState
from hetero_hvd.hub.storage.journal import JournalEntry, frames_of, read_journal, stored_entries
from hetero_hvd.probes.kernel.parent_process import dies_with
from hetero_hvd.run.records.run_files import private, sync_folder

NEW = ".new"
"""Of a segment that is not whole."""

NICE = 19
MAX_WORDS = 300


class SealedJournal(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a segment.

    Attributes:
        pieces: Where.
        streams: What the journal has of each: numbers of samples are those in it alone.
        gaps: Stream, first and last number of what will never come.
        damaged_bytes: Of the journal, which are in no entry.
    """

    pieces: list[StoredPiece]
    streams: dict[str, StreamState]
    gaps: list[tuple[str, int, int]]
    damaged_bytes: int


Sealer = Callable[[Path, Path, int], SealedJournal]


def seal_here(journal: Path, segment: Path, number: int) -> SealedJournal:
    """Write a segment; it is there when it is whole.

    Args:
        journal: Whose samples.
        segment: The file.
        number: Its own.

    Raises:
        OSError: The disk does not take it.
    """
    streams: dict[str, list[JournalEntry]] = {}
    parts: dict[tuple[str, str], list[JournalEntry]] = {}  # an agent may have got another name
    content = read_journal(journal)
    damaged_bytes = len(content)
    for entry, part in stored_entries(content):
        streams.setdefault(entry.stream, []).append(entry)
        parts.setdefault((entry.stream, entry.node), []).append(entry)
        damaged_bytes -= part.size_bytes
    pieces: list[StoredPiece] = []
    new = segment.with_suffix(NEW)
    with open(new, "wb", opener=private) as file:
        for (stream, node), entries in parts.items():
            frames = [frame for entry in entries for frame in frames_of(entry)]
            if not frames:
                continue
            content = encode_piece(frames)
            pieces.append(
                StoredPiece(
                    number, file.tell(), len(content), stream, node,
                    frames[0].sequence, frames[-1].sequence,
                    frames[0].at_microseconds, frames[-1].at_microseconds, len(frames),
                )
            )  # fmt: skip
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(segment)
    sync_folder(segment.parent)
    all_entries = [entry for entries in streams.values() for entry in entries]
    return SealedJournal(
        pieces=pieces,
        streams={stream: _state(entries) for stream, entries in streams.items()},
        gaps=[(entry.stream, *each) for entry in all_entries for each in entry.missing],
        damaged_bytes=damaged_bytes,
    )


def seal_apart(journal: Path, segment: Path, number: int) -> SealedJournal:
    """The same by a process of its own.

    Raises:
        OSError: The disk does not take it.
        JobError: The process has failed for another reason.
    """
    given = [str(journal), str(segment), str(number), str(os.getpid())]
    vector = [sys.executable, "-m", __name__, *given]
    done = subprocess.run(vector, capture_output=True, check=False)
    if done.returncode > 0 and done.stdout.isdigit():
        number_of_error = int(done.stdout)
        raise OSError(number_of_error, os.strerror(number_of_error), str(segment))
    if done.returncode:
        words = done.stderr[-MAX_WORDS:].decode(errors="replace").strip()
        raise JobError(f"{journal}: could not be sealed: {words or done.returncode}")
    return msgspec.json.decode(done.stdout, type=SealedJournal)


def _state(entries: list[JournalEntry]) -> StreamState:
    times = [entry.times[-1] for entry in entries if entry.times]
    return StreamState(
        entries[-1].node,
        max(entry.next_sequence for entry in entries),
        max(times, default=0),
        sum(len(entry.samples) for entry in entries),
        sum(each.size for entry in entries for each in entry.ranges),
    )


def main() -> int:
    """Seal, and print what is in the segment, or the number of what the disk says."""
    if not dies_with(int(sys.argv[4])):
        return 0
    os.nice(NICE)
    try:
        sealed = seal_here(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except OSError as error:
        sys.stdout.write(str(error.errno or 0))
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(sealed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
