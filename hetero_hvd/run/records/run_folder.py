"""The folder of a run: one driver at a time, one run, unless that is gone on with."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hetero_hvd.errors import JobError
from hetero_hvd.run.records.run_files import FOLDER_MODE
from hetero_hvd.run.records.timings import FILE as TIMINGS
from hetero_hvd.run.records.writer import FILE as CATALOGUE

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
MAX_RUNS_PER_SECOND = 1000
TRACES_OF_A_TRY = (CATALOGUE, f"{CATALOGUE}-wal", f"{CATALOGUE}-shm", TIMINGS)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where a run keeps what is known of it.

    Attributes:
        path: The folder.
        run_id: Of this run, unlike that of any other, also of one in a folder of the same name.
    """

    path: Path
    run_id: str


@contextmanager
def run_folder(output: str | None, resume: Path | None) -> Iterator[RunFolder]:
    """Make the folder, or take an existing one in which nothing was trained yet, and hold it.

    Args:
        output: Where the user wants it; None: that of the run to go on from, else a new one in
            runs/, named after the time.
        resume: Folder of the run to go on from.

    Raises:
        JobError: The folder cannot be had.
    """
    if resume is not None and not (resume / CHECKPOINTS).is_dir():
        raise JobError(f"--resume {resume}: there is no folder {CHECKPOINTS!r} in it")
    try:
        path = (resume or _fresh()) if output is None else Path(output)
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _cannot_be_used(error) from error
    try:
        _hold(descriptor, path)
        _prepare(path, goes_on=resume is not None and resume.resolve() == path.resolve())
        yield RunFolder(path=path, run_id=f"{path.absolute().name}-{secrets.token_hex(4)}")
    finally:
        os.close(descriptor)


def _cannot_be_used(error: OSError) -> JobError:
    return JobError(f"job.output: {error.filename} cannot be used: {error.strerror}")


def _fresh() -> Path:
    """A new folder: of those who start in the same second, each gets its own."""
    RUNS.mkdir(exist_ok=True)
    name = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    candidates = (name, *(f"{name}-{number}" for number in range(2, MAX_RUNS_PER_SECOND + 1)))
    for path in (RUNS / candidate for candidate in candidates):
        with suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
            return path
    raise JobError(f"{RUNS.absolute()}: {len(candidates)} runs were started in one second")


def _prepare(path: Path, *, goes_on: bool) -> None:
    try:
        _refuse_links(path)
        if not goes_on:
            _refuse_a_run(path)
        (path / "logs").mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise _cannot_be_used(error) from error


def _hold(descriptor: int, path: Path) -> None:
    """Be the only driver there, until this process ends in whatever way."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JobError(f"job.output: {path}: another job runs in it; give another folder") from None
    except OSError:  # a file system without locks
        pass


def _refuse_links(path: Path) -> None:
    for entry in (*path.iterdir(), *path.glob("logs/*")):
        if entry.is_symlink() and not entry.is_dir():
            raise JobError(f"job.output: {entry} is a link: remove it, or give another folder")


def _refuse_a_run(path: Path) -> None:
    """Two runs in one folder would look like one; a try that trained nothing is forgotten."""
    segments = [file for file in path.glob("timings*.jsonl") if file.stat().st_size]
    found = next(iter([*segments, *path.glob(f"{CHECKPOINTS}/*")]), None)
    if found is not None:
        raise JobError(
            f"job.output: {path}: there is a run in it ({found.relative_to(path)}); give another "
            f"folder, or go on with that run: --resume {path}"
        )
    for name in TRACES_OF_A_TRY:
        (path / name).unlink(missing_ok=True)
