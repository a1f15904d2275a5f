"""Writes files into a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_hvd.errors import UserError

MARK = "Written by hetero-hvd deploy, which may remove it with --force; without this line it stays."
"""Among the first lines of each file that a later call may remove: others are somebody's own."""

MARK_BYTES = 300
"""From the begin of a file: in them its mark is whole."""

MAX_NAMES = 8
"""Of files in one line."""


def with_mark(text: str) -> str:
    """A text in YAML or for a shell, so that a later call knows the file as one of ours."""
    first, _, rest = text.partition("\n")
    return f"{first}\n# {MARK}\n{rest}" if first.startswith("#!") else f"# {MARK}\n{text}"


def _check(folder: Path, contents: Mapping[str, str | None], *, force: bool) -> None:
    """Find out that nothing would be lost, before anything is written."""
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot be used: {reason}; name a folder") from error
    if found and not force:
        raise UserError(
            f"{folder}: is not empty, holds {found[0]!r}; name another folder, or replace files of "
            "the same names with --force"
        )
    gone = (name for name, text in contents.items() if text is None)
    others = [
        name for name in gone if os.path.lexists(folder / name) and not _is_ours(folder / name)
    ]
    if others:
        shown = ", ".join(others[:MAX_NAMES]) + ", ..." * (len(others) > MAX_NAMES)
        raise UserError(
            f"{folder}: cannot hold beside what is to be written: {shown}, which hetero-hvd deploy "
            "has not written and so does not remove; move it away, or name another folder"
        )


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(MARK_BYTES)
    except OSError:
        return False


def write_files(
    folder: Path, contents: Mapping[str, str | None], *, force: bool = False
) -> list[Path]:
    """Write each file, whole or not at all; none, where something of somebody would be lost.

    Args:
        folder: Made if it is not there.
        contents: Path in it to text; None: what an earlier call has written there goes.
        force: Whether files of the same names may be replaced.

    Returns:
        What was written.

    Raises:
        UserError: It is no folder, or holds something, and nobody has said that it may go; what
            was to be removed is not ours; or it cannot be written.
    """
    _check(folder, contents, force=force)
    written = []
    for name, text in contents.items():
        path = folder / name
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            if text is None:
                path.unlink(missing_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                fresh.unlink()
        written.append(path)
    return written


def make_readable(folder: Path, files: Collection[Path]) -> None:
    """Let every user read these files, whatever the umask was: containers run as several users.

    Args:
        folder: Above all of them; it stays as it is, as containers do not go through it.
        files: In it, or in folders of it. Nothing secret.

    Raises:
        OSError: Somebody else owns one.
    """
    below = {parent for path in files for parent in path.relative_to(folder).parents}
    for path in sorted(below - {Path()}):
        (folder / path).chmod(0o755)
    for path in files:
        path.chmod(0o644)
