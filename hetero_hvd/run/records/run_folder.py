"""The folder of a run: one driver at a time, one run, unless that is gone on with."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hetero_hvd.errors import JobError, TryAgainError, job_error
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.run.records.earlier_run import CHECKPOINTS, RUNS
from hetero_hvd.run.records.reader import run_id_of
from hetero_hvd.run.records.run_files import FOLDER_MODE, lock_folder
from hetero_hvd.run.records.timings import FILE as TIMINGS
from hetero_hvd.run.records.writer import FILE as CATALOGUE
from hetero_hvd.run.records.writer import NAME_FILE

MAX_RUNS_PER_SECOND = 1000
TRACES_OF_A_TRY = (CATALOGUE, f"{CATALOGUE}-wal", f"{CATALOGUE}-shm", NAME_FILE, TIMINGS)


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
        resume: Folder of the run to go on from; None: there is none.

    Raises:
        JobError: The folder cannot be had.
    """
    with ExitStack() as held:
        try:
            path = (resume or _fresh()) if output is None else Path(output)
        except OSError as error:
            raise _cannot_be_used(error) from error
        _refuse_root(path)
        _hold(path, held)
        _prepare(path, goes_on=resume is not None and resume.resolve() == path.resolve())
        yield RunFolder(path=path, run_id=_new_id(path))


def new_identity(
    output: str | None, node: str, *, name: str = "", tags: tuple[str, ...] = ()
) -> RunIdentity:
    """What a process without a driver would call its run; nothing is made on disk.

    Args:
        output: Where the user wants the folder; None: in runs/, named after the time.
        node: Name of the process's node.
        name: See `RunIdentity`.
        tags: See `RunIdentity`.
    """
    path = RUNS / _name_of_now() if output is None else Path(output)
    if path.name in ("", ".."):  # others are named after it
        path = Path(os.path.abspath(path))  # noqa: PTH100 - of a place, whatever is linked there
    return RunIdentity(run_id=_new_id(path), folder=str(path), node=node, name=name, tags=tags)


@contextmanager
def run_part(run: RunIdentity, node: str) -> Iterator[RunFolder]:
    """Hold the folder for what is written of a run on one node, where there is no driver.

    On the node of its first rank 0 that is the run's own, on others NAME.NODE. Where another run
    is in it, or another process holds it, it is the next one that is free: NAME-2 and so on.

    Args:
        run: The run.
        node: Name of this process's node.

    Raises:
        JobError: The folder cannot be had.
    """
    _refuse_root(Path(run.folder))
    first = Path(run.folder) if node == run.node else Path(f"{run.folder}.{node}")
    for number in range(1, MAX_RUNS_PER_SECOND):
        path = first if number == 1 else first.with_name(f"{first.name}-{number}")
        with ExitStack() as held:
            try:
                _hold(path, held)
                _prepare(path, goes_on=run_id_of(path) == run.run_id)
            except _TakenError:
                continue
            yield RunFolder(path=path, run_id=run.run_id)
            return
    raise JobError(f"{first}: is taken, and so are all that are numbered after it")


def delete_run(folder: Path) -> None:
    """Delete the folder of a run, with all that is in it; what links in it lead to stays.

    Raises:
        JobError: Another process has it, or the disk refuses.
    """
    if folder.is_symlink():
        raise _TakenError(f"{folder}: is a link; what it leads to stays, and so does it")
    try:
        descriptor = lock_folder(folder)
        if descriptor is None:
            raise _HeldError(f"{folder}: a job runs in it; it stays")
        try:
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)
    except PermissionError as error:
        of = f"it is of {_owner(folder)}" if _is_of_another(folder) else str(error.strerror)
        raise JobError(f"{folder} cannot be deleted: {of}{_within(folder, error)}") from error
    except OSError as error:
        why = f"{error.strerror or error}{_within(folder, error)}"
        raise job_error(f"{folder} cannot be deleted: {why}", error) from error


def _is_of_another(folder: Path) -> bool:
    with suppress(OSError):
        return folder.lstat().st_uid != os.geteuid()
    return False


def _owner(folder: Path) -> str:
    """The name of its user; on a machine that does not know it, the number."""
    try:
        return folder.owner()
    except (KeyError, OSError):
        return f"user {folder.lstat().st_uid}"


def _within(folder: Path, error: OSError) -> str:
    """Which file is to blame, where that is not the folder itself."""
    name = Path(os.fsdecode(error.filename)).name if error.filename else ""
    return f" ({name})" if name not in ("", folder.name) else ""


class _TakenError(JobError):
    """A folder that another run has, or another process."""


class _HeldError(_TakenError, TryAgainError):
    """A folder that another process has, as long as it runs."""


def _cannot_be_used(error: OSError) -> JobError:
    return job_error(f"job.output: {error.filename} cannot be used: {error.strerror}", error)


def _fresh() -> Path:
    """A new folder: of those who start in the same second, each gets its own."""
    RUNS.mkdir(exist_ok=True)
    name = _name_of_now()
    candidates = (name, *(f"{name}-{number}" for number in range(2, MAX_RUNS_PER_SECOND + 1)))
    for path in (RUNS / candidate for candidate in candidates):
        with suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
            return path
    raise JobError(f"{RUNS.absolute()}: {len(candidates)} runs were started in one second")


def _name_of_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"


def _new_id(path: Path) -> str:
    return f"{path.absolute().name}-{secrets.token_hex(4)}"


def _prepare(path: Path, *, goes_on: bool) -> None:
    try:
        if not goes_on:
            _refuse_a_run(path)
        (path / "logs").mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise _cannot_be_used(error) from error


def _refuse_root(path: Path) -> None:
    if not os.path.basename(os.path.abspath(path)):  # noqa: PTH100, PTH119 - whatever is linked
        raise JobError(f"job.output: {path} has no name: give a folder of this run alone")


def _hold(path: Path, held: ExitStack) -> None:
    """Make the folder, and be the only driver there."""
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        _refuse_links(path)
        descriptor = lock_folder(path)
    except OSError as error:
        raise _cannot_be_used(error) from error
    if descriptor is None:
        raise _HeldError(f"job.output: {path}: another job runs in it; give another folder")
    held.callback(os.close, descriptor)


def _refuse_links(path: Path) -> None:
    for entry in (*path.iterdir(), *path.glob("logs/*")):
        if entry.is_symlink() and not entry.is_dir():
            raise JobError(f"job.output: {entry} is a link: remove it, or give another folder")


def _refuse_a_run(path: Path) -> None:
    """Two runs in one folder would look like one; a try that trained nothing is forgotten."""
    segments = [file for file in path.glob("timings*.jsonl") if file.stat().st_size]
    found = next(iter([*segments, *path.glob(f"{CHECKPOINTS}/*")]), None)
    if found is not None:
        raise _TakenError(
            f"job.output: {path}: there is a run in it ({found.relative_to(path)}); give another "
            f"folder, or go on with that run: --resume {path}"
        )
    for name in TRACES_OF_A_TRY:
        (path / name).unlink(missing_ok=True)
