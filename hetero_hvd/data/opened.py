"""Which files the script has opened in this process, for the comparison with other workers."""

from __future__ import annotations

from hetero_hvd.messages import FileSet

_opened: list[FileSet] = []


def announce(found: FileSet) -> None:
    """The script has opened a set of files."""
    _opened.append(found)


def opened_files() -> tuple[FileSet, ...]:
    """All that it has opened so far, in that order."""
    return tuple(_opened)
