"""How a command is told which run."""

from __future__ import annotations

from pathlib import Path

LATEST = "latest"
HELP = f"output folder, the folder's name in runs/, or {LATEST!r}"


def run_of(text: str, runs: Path = Path("runs")) -> Path:
    """The folder of a run; for a run that is not there, the folder that was named."""
    path = Path(text)
    if path.exists():
        return path
    if text == LATEST:
        records = [path / "run.sqlite" for path in runs.glob("*") if (path / "run.sqlite").exists()]
        newest = max(records, key=lambda record: record.stat().st_mtime, default=None)
        return path if newest is None else newest.parent
    return runs / text if (runs / text).exists() else path
