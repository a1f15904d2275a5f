"""Writes a session's samples as a run's folder, which all commands for runs read."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import JobError
from hetero_hvd.messages import (
    Event,
    Finding,
    Judged,
    NodeSampled,
    RunEnded,
    RunStarted,
    event_to_json,
)
from hetero_hvd.run.recordings.frames import FILE as FRAMES
from hetero_hvd.run.recordings.frames import RecordedFrame, write_frames
from hetero_hvd.run.records.run_files import FOLDER_MODE, private
from hetero_hvd.run.records.samples import SampleTable
from hetero_hvd.run.records.writer import FILE as CATALOGUE
from hetero_hvd.run.records.writer import SCHEMA

FACTS = "recording.json"
OLD = ".old"
"""Of a folder whose place a new one is about to take."""

REASON = "recorded"
SETTING = "recording"
"""In the settings of a run that is one."""


class RecordingMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a node in a recording.

    Attributes:
        at_unix_seconds: When, by the hub's clock.
        node: Its name.
        kind: What, such as `unhealthy` or `healthy`.
        words: For people.
    """

    at_unix_seconds: float
    node: str
    kind: str
    words: str


class RecordingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording is beside its frames.

    Attributes:
        name: Of its session.
        from_unix_seconds: Its begin.
        until_unix_seconds: Its end.
        every_seconds: Between two samples, as it was wanted.
        nodes: Those that were asked for; empty: all.
        num_frames: In it.
        num_missing: Samples between them that were dropped for want of room.
        num_bytes: Of all samples as they were sent; 0: an earlier version has written it.
        marks: What happened.
    """

    name: str
    from_unix_seconds: float
    until_unix_seconds: float
    every_seconds: float
    nodes: tuple[str, ...]
    num_frames: int
    num_missing: int
    num_bytes: int = 0
    marks: tuple[RecordingMark, ...] = ()


class _Written(NamedTuple):
    """What was written."""

    nodes: set[str]
    num_frames: int
    num_missing: int
    num_bytes: int


def write_recording(
    folder: Path,
    session: RecordingSession,
    frames: Iterable[RecordedFrame],
    *,
    until_microseconds: int,
    marks: Sequence[RecordingMark] = (),
) -> RecordingFacts:
    """Write it; the folder appears when it is whole, in the place of one of the same session.

    Args:
        folder: Where.
        session: What it is of.
        frames: Its samples, stream by stream, the streams of a node by time.
        until_microseconds: Its end.
        marks: What happened.

    Raises:
        JobError: Something else is in the folder, or it cannot be written.
    """
    earlier = read_facts(folder) if folder.exists() else None
    if earlier is not None and earlier.name != session.name:
        raise JobError(f"{folder}: holds another recording; move it away, or choose another name")
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        new.mkdir(mode=FOLDER_MODE, parents=True)
        written = _write(new, frames)
        _check_none_is_lost(folder, earlier, written)
        facts = RecordingFacts(
            name=session.name,
            from_unix_seconds=session.from_microseconds / MICROSECONDS,
            until_unix_seconds=until_microseconds / MICROSECONDS,
            every_seconds=session.every_seconds,
            nodes=session.nodes,
            num_frames=written.num_frames,
            num_missing=written.num_missing,
            num_bytes=written.num_bytes,
            marks=tuple(marks),
        )
        _write_catalogue_events(new, folder.name, facts, sorted(written.nodes))
        with open(new / FACTS, "wb", opener=private) as file:
            file.write(msgspec.json.encode(facts))
        _put_in_place(new, folder)
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise JobError(f"{folder}: cannot be written: {error}") from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return facts


def read_facts(folder: Path) -> RecordingFacts:
    """What a recording is beside its frames.

    Raises:
        JobError: It is none, or damaged.
    """
    path = folder / FACTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=RecordingFacts)
    except (OSError, msgspec.DecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error


def _check_none_is_lost(folder: Path, earlier: RecordingFacts | None, new: _Written) -> None:
    """A folder is not written anew with less than it has.

    Raises:
        JobError: It would be.
    """
    if earlier is not None and new.num_frames < earlier.num_frames:
        raise JobError(
            f"{folder}: has {earlier.num_frames} samples, of which the store has only "
            f"{new.num_frames} any more: the folder stays; choose another name for the rest"
        )
    if earlier is not None and new.num_bytes < earlier.num_bytes:
        raise JobError(
            f"{folder}: has figures that are damaged in the store by now: the folder stays; choose "
            "another name for the rest"
        )


def _put_in_place(new: Path, folder: Path) -> None:
    earlier = new.with_name(f"{new.name}{OLD}")
    if folder.exists():
        folder.rename(earlier)
    new.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def finish_interrupted(place: Path) -> None:
    """Put in order what was being written when its writer was killed.

    Args:
        place: Folder of all recordings; nobody writes there now.
    """
    for earlier in place.glob(f".*{OLD}"):
        new = earlier.with_name(earlier.name.removesuffix(OLD))
        folder = place / new.name[1:].rpartition(".")[0]
        if not folder.exists():  # the new one was whole already
            (new if new.exists() else earlier).rename(folder)
    for path in place.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, frames: Iterable[RecordedFrame]) -> _Written:
    """The frames, and the rows of ten seconds each that runs have of their nodes."""
    nodes: set[str] = set()
    counts = {"frames": 0, "missing": 0, "bytes": 0}
    path = folder / CATALOGUE
    os.close(private(str(path), os.O_RDWR | os.O_CREAT))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;{SCHEMA}")
        connection.execute("BEGIN")
        table = SampleTable(connection)

        def noted() -> Iterator[RecordedFrame]:
            before: tuple[str, str, int] | None = None
            for frame in frames:
                number = frame.recorded.sequence
                if before is not None and before[:2] == (frame.node, frame.stream):
                    counts["missing"] += number - before[2] - 1
                before = frame.node, frame.stream, number
                counts["frames"] += 1
                counts["bytes"] += len(frame.recorded.sample)
                nodes.add(frame.node)
                if isinstance(sample := frame.sample, NodeSampled):
                    named = msgspec.structs.replace(sample, node=frame.node)
                    table.add(frame.at_unix_seconds, named)
                yield frame

        with open(folder / FRAMES, "wb", opener=private) as file:
            write_frames(file, noted())
        table.close()
        connection.execute("COMMIT")
    return _Written(nodes, counts["frames"], counts["missing"], counts["bytes"])


def _write_catalogue_events(
    folder: Path, name: str, facts: RecordingFacts, nodes: Sequence[str]
) -> None:
    seconds = facts.until_unix_seconds - facts.from_unix_seconds
    counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    words = (
        f"a recording of {counted} for {seconds:.0f} s, {facts.num_frames} samples and "
        f"{facts.num_missing} missing: nothing was trained"
    )
    finding = Finding(kind="compute", is_complete=True, words=words)
    started = RunStarted(
        run_id=f"{name}-{secrets.token_hex(4)}",
        command=(),
        nodes=tuple(nodes),
        settings={SETTING: facts.name, "every_seconds": f"{facts.every_seconds:g}"},
        name=facts.name,
    )
    told: list[tuple[float, Event]] = [
        (facts.from_unix_seconds, started),
        (facts.until_unix_seconds, Judged(step=0, findings=(finding,))),
        (facts.until_unix_seconds, RunEnded(exit_code=0, reason=REASON)),
    ]
    with closing(sqlite3.connect(folder / CATALOGUE)) as connection, connection:
        connection.executemany(
            "INSERT INTO events (at_unix_seconds, kind, body) VALUES (?, ?, ?)",
            [(at, type(event).__name__, event_to_json(event)) for at, event in told],
        )
