"""The run to go on from: where its checkpoints are."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hetero_hvd.errors import JobError, job_error
from hetero_hvd.messages import CheckpointWritten, RunStarted
from hetero_hvd.run.records.reader import starts_and_checkpoints
from hetero_hvd.run.records.run_files import LISTED
from hetero_hvd.run.records.writer import FILE

logger = logging.getLogger(__name__)

RUNS = Path("runs")
"""Where runs are kept whose folder nobody has named."""

CHECKPOINTS = "checkpoints"
"""Folder in a run's folder where they are kept unless the job has a `checkpoint_url`."""

MAX_NAME = 63
RUN_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
"""A dot in it would make a writer take another run's unfinished checkpoints for its own."""

_CHECKPOINT = re.compile(r"(?P<place>.*)/step-\d+-(?P<run>[^/]+)")
"""Path or URL of one."""


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run to go on from.

    Attributes:
        folder: Its output folder; None: only its checkpoints are known.
        checkpoints: Path or URL of its checkpoints; empty: where they are kept from now on, as far
            as is known.
        name: Of the job in its checkpoints, if this is another start of it: what all its starts
            have kept is its own then, and nothing has to be there. Empty: a run of its own begins.
        runs: Names of the run's starts among its checkpoints, where other runs may have kept theirs
            in the same place; empty: whatever is there is meant.
    """

    folder: Path | None
    checkpoints: str
    name: str = ""
    runs: tuple[str, ...] = ()


def is_url(text: str) -> bool:
    """Whether that names checkpoints by their address, not a run by its folder."""
    return "://" in text


def earlier_run(place: Path | str) -> EarlierRun:
    """Find the checkpoints of a run.

    Args:
        place: Its folder, or the URL of its checkpoints.

    Raises:
        JobError: It has none, as far as can be seen without asking a server.
    """
    if isinstance(place, str):
        return EarlierRun(folder=None, checkpoints=place)
    own = place / CHECKPOINTS
    with _looking_at(own):
        if not place.is_dir():
            raise JobError(f"--resume {place}: {_why_no_folder(place)}")
        is_there = own.is_dir()
    events = _events(place)
    recorded = _recorded(place, events)
    if recorded is not None and is_url(recorded.checkpoints):
        return recorded
    if is_there:
        return EarlierRun(folder=place, checkpoints=str(own.absolute()))
    if recorded is not None:  # on the disk of the node that had rank 0
        return recorded
    starts = [event for event in events if isinstance(event, RunStarted)]
    if starts and (url := _url_of(starts[-1])):
        return EarlierRun(folder=place, checkpoints=url)
    raise JobError(f"--resume {place}: {_why_nothing(place, is_recorded=bool(starts))}")


def _why_nothing(place: Path, *, is_recorded: bool) -> str:
    """Why there is no checkpoint in a folder, and what to name instead."""
    if (place / "manifest.json").exists():
        store = place.absolute().parent.as_uri()
        return (
            f"that is a checkpoint; name the folder of its run, or {store} for the newest one there"
        )
    if is_recorded:
        return (
            f"that run has kept no checkpoint: there is no folder {CHECKPOINTS!r} in it; start "
            "without --resume to train from the beginning"
        )
    if (place / FILE).exists():
        return f"its record {FILE} tells of no start; if the run had a checkpoint_url, name that"
    return f"no run is recorded there, nor kept; {LISTED}"


def _why_no_folder(place: Path) -> str:
    """What is in its place, and which one may be meant."""
    if place.exists() or place.is_symlink():
        is_link = place.is_symlink() and not place.exists()
        what = "a link to what is not there" if is_link else "no folder"
        return f"it is {what}; name the folder of a run; {LISTED}"
    own = RUNS / place
    meant = f": {own} is one" if own.is_dir() else ""
    return f"there is no such folder{meant}; {LISTED}"


@contextmanager
def _looking_at(path: Path) -> Iterator[None]:
    """Where the system may refuse to say whether there is something."""
    try:
        yield
    except OSError as error:
        raise job_error(f"{path} cannot be read: {error.strerror}", error) from error


def _events(folder: Path) -> list[RunStarted | CheckpointWritten]:
    """What is recorded of a run's starts and checkpoints; nothing, where that cannot be read."""
    try:
        return starts_and_checkpoints(folder)
    except JobError as error:
        logger.warning("%s; a checkpoint_url that the run has had is not known", error)
        return []


def _url_of(start: RunStarted) -> str:
    """The `checkpoint_url` of a start; empty: it had none."""
    url = str(start.settings.get("checkpoint_url", ""))
    return url if is_url(url) else ""


def _recorded(folder: Path, events: Iterable[RunStarted | CheckpointWritten]) -> EarlierRun | None:
    """Where the newest checkpoint is of which the run's record tells; None: it tells of none.

    An earlier start may have kept its own elsewhere.
    """
    url, found = "", []
    for event in events:
        if isinstance(event, RunStarted):
            url = _url_of(event)
            continue
        series = f"-trainer{event.trainer}" if event.trainer > 1 else ""
        names = _CHECKPOINT.fullmatch(event.path.removesuffix(series))
        if names is not None:
            is_address = is_url(names["place"])  # as it is, without what redaction may have hidden
            found.append((names["place"] if url and is_address else url, names))
    if not found:
        return None
    last_url, last = found[-1]
    if not last_url:
        return EarlierRun(folder=folder, checkpoints=last["place"])
    runs = {names["run"]: None for url, names in found if url == last_url}
    return EarlierRun(folder=folder, checkpoints=last_url, runs=tuple(runs))


def run_of_folder(output: Path) -> EarlierRun:
    """Another start of the run in a folder, or its first one; the folder's name is that of the run.

    Args:
        output: The folder, the same at all starts. It may be empty at each of them, where the
            checkpoints are in a store that knows the run by its name.

    Raises:
        JobError: The folder's name cannot be one among checkpoints.
    """
    name = output.absolute().name
    if RUN_NAME.fullmatch(name) is None:
        raise JobError(
            f"--resume auto: {name!r} is to name the run among its checkpoints, so it must be of "
            f"at most {MAX_NAME} letters, digits, '-' and '_'; give such a folder with --output"
        )
    return same_run(name, output)


def same_run(name: str, output: Path) -> EarlierRun:
    """Another start of a run, or its first one: it goes on from its own newest checkpoint, if any.

    Args:
        name: By which the run is known through all its starts.
        output: Its folder, which may not be there: then another place may hold its checkpoints.

    Raises:
        JobError: The system does not let us look.
    """
    with _looking_at(output):
        is_there = output.exists()
    recorded = _recorded(output, _events(output)) if is_there else None
    place = "" if recorded is None else recorded.checkpoints
    if place and not is_url(place):  # the folder may have been moved since
        place = str((output / CHECKPOINTS).absolute())
    return EarlierRun(folder=output if is_there else None, checkpoints=place, name=name)


def plain_place(place: str) -> str:
    """Of two that are the same one the same text: a file system's path, or an address."""
    path = unquote(urlsplit(place).path) if place.startswith("file:") else place
    return path.rstrip("/")
