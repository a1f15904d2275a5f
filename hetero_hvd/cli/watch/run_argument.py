"""How a command is told which run."""

from __future__ import annotations

from pathlib import Path

from hetero_hvd.errors import JobError

LATEST = "latest"
HELP = f"output folder, the folder's name in runs/, or {LATEST!r}"


def run_of(text: str, runs: Path = Path("runs")) -> Path:
    """The folder of a run; for a run that is not there, the folder that was named.

    Raises:
        JobError: It cannot be looked at.
    """
    path = Path(text)
    try:
        if path.exists():
            return path
        if text == LATEST:
            return _latest(runs) or path
        return runs / text if (runs / text).exists() else path
    except OSError as error:  # a name that is too long, a folder of somebody else
        raise JobError(f"{text}: {error.strerror}; name the {HELP}") from error


def _latest(runs: Path) -> Path | None:
    """Who has begun last, or was gone on with: a file's time changes when somebody reads it."""
    from hetero_hvd.run.records.reader import newest_start  # noqa: PLC0415 - seldom needed

    starts = [(newest_start(record.parent), record.parent) for record in runs.glob("*/run.sqlite")]
    known = [(start[0], folder) for start, folder in starts if start is not None]
    return max(known, default=(0.0, None))[1]
