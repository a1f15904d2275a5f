"""A recorded run into a sink: all of it at once, or along with the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from hetero_hvd.messages import RunEnded, RunStarted
from hetero_hvd.run.recordings.frames import is_recording, read_frames
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.facts import NO_END, NOT_RECORDED, facts_of
from hetero_hvd.run.sinks.following import FollowedRun
from hetero_hvd.run.sinks.recorded_frames import samples_of_frames
from hetero_hvd.run.sinks.sample import samples_of_record
from hetero_hvd.run.sinks.sink import open_sink, told

POLL_SECONDS = 1.0
SAMPLES_AT_ONCE = 100_000


def export_run(folder: Path, url: str) -> None:
    """Write all that is recorded of a run.

    Args:
        folder: Of the run; it may still be going on.
        url: Of the destination.

    Raises:
        JobError: The run cannot be read, or the destination does not take it.
    """
    record = read_run(folder)
    sink = open_sink(url)
    with told(url):
        sink.begin(_started(record, folder))
        sink.write(list(samples_of_record(record)))
        if is_recording(folder):
            frames = samples_of_frames(read_frames(folder))
            while some := list(islice(frames, SAMPLES_AT_ONCE)):
                sink.write(some)
        sink.end(facts_of(record).state)


def follow_run(folder: Path, url: str, *, wait: Callable[[float], object] = time.sleep) -> None:
    """Write what is recorded of a run, and what is added, until it ends or is interrupted.

    Args:
        folder: Of the run.
        url: Of the destination.
        wait: Lets so many seconds pass.

    Raises:
        JobError: The run cannot be read, or the destination does not take it.
    """
    sink = open_sink(url)
    run = FollowedRun(folder)
    record = run.read()
    state = NO_END
    with told(url):
        sink.begin(_started(record, folder))
        try:
            while True:
                state = _state(record, state)
                is_whole = state != NO_END
                samples = list(samples_of_record(record, is_whole=is_whole))
                if samples:
                    sink.write(samples)
                if is_whole:
                    break
                wait(POLL_SECONDS)
                record = run.read()
        except BaseException:
            with suppress(Exception):  # what has gone wrong first is told
                sink.end(state)
            raise
        sink.end(state)


def _state(record: Record, before: str) -> str:
    """How a run has ended by what was just read; a run that goes on in its folder has not."""
    state = before
    for _, event in record.events:
        if isinstance(event, RunStarted):
            state = NO_END
        elif isinstance(event, RunEnded):
            state = event.reason
    return state


def _started(record: Record, folder: Path) -> RunStarted:
    """What was told at the newest start; the folder's name where nothing was."""
    found = [event for _, event in record.events if isinstance(event, RunStarted)]
    started = found[-1] if found else NOT_RECORDED
    return started if started.run_id else replace(started, run_id=folder.absolute().name)
