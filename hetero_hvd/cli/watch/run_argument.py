"""How a command is told which run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.errors import JobError, UserError

LATEST = "latest"
HELP = f"output folder; the folder or name of a run in runs/, or how it begins; or {LATEST!r}"


def add_run(command: argparse.ArgumentParser) -> None:
    """The run of a command that is about one; the latest if none is named."""
    command.add_argument(
        "run",
        nargs="?",
        type=run_of,
        default=LATEST,
        metavar="RUN",
        help=f"{HELP} (default: {LATEST!r})",
    )


def run_of(text: str, runs: Path = Path("runs")) -> Path:
    """The folder of a run; for a run that is not there, the folder that was named.

    A path that is there comes first, then the latest run, then a whole name, then how a name
    begins. A run has two names: that of its folder, and what `--name` called it.

    Raises:
        JobError: It cannot be looked at.
        UserError: Several runs could be meant.
    """
    path = Path(text)
    try:
        if path.exists():
            return path
        if text == LATEST:
            return _latest(runs) or path
        if (runs / text).exists():
            return runs / text
        return _named(text, runs) or path
    except (OSError, ValueError) as error:  # too long, of somebody else, or with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else "is no path"
        raise JobError(f"{text}: {reason}; name the {HELP}") from error


def _named(text: str, runs: Path) -> Path | None:
    """The only run of that name, else the only one whose name begins so; None: there is none.

    Raises:
        UserError: There are several.
    """
    if not text:
        return None
    names = list(_names(runs))
    whole = {folder for name, folder in names if name == text}
    found = whole or {folder for name, folder in names if name.startswith(text)}
    if len(found) > 1:
        listed = ", ".join(sorted(folder.name for folder in found))
        raise UserError(f"{text}: could be {listed}; write more of the name")
    return next(iter(found), None)


def _names(runs: Path) -> Iterator[tuple[str, Path]]:
    from hetero_hvd.run.records.reader import newest_start  # noqa: PLC0415 - seldom needed

    for record in runs.glob("*/run.sqlite"):
        folder = record.parent
        yield folder.name, folder
        start = newest_start(folder)
        if start is not None and start[1].name:
            yield start[1].name, folder


def _latest(runs: Path) -> Path | None:
    """Who has begun last, or was gone on with: a file's time changes when somebody reads it."""
    from hetero_hvd.run.records.reader import newest_start  # noqa: PLC0415 - seldom needed

    starts = [(newest_start(record.parent), record.parent) for record in runs.glob("*/run.sqlite")]
    known = [(start[0], folder) for start, folder in starts if start is not None]
    return max(known, default=(0.0, None))[1]
