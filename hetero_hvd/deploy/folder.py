"""Writes files into a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import make_key
from hetero_hvd.whole_file import AS_THE_UMASK_HAS_IT, write_whole

MARK = "Written by hetero-hvd deploy, which may replace or remove it; without this line it stays."
"""Among the first lines of each file that a later call may remove: others are somebody's own."""

MARK_BYTES = 300
"""From the begin of a file: in them its mark is whole."""

MAX_NAMES = 8
"""Of files in one line."""


def with_mark(text: str, *, is_json: bool = False) -> str:
    """A text, so that a later call knows the file as one of ours.

    Args:
        text: In YAML, for a shell, or an object of JSON that is not empty.
        is_json: Whether whoever reads it knows no comments: then the mark is its description.
    """
    if is_json:
        return f'{{\n  "description": "{MARK}",{text.removeprefix("{")}'
    first, _, rest = text.partition("\n")
    return f"{first}\n# {MARK}\n{rest}" if first.startswith("#!") else f"# {MARK}\n{text}"


@dataclass(frozen=True, kw_only=True)
class FolderContents:
    """What a folder is to hold.

    Attributes:
        files: Path in it to text; None: what an earlier call has written there goes.
        folders: To the mode that a new one gets; one that is there stays as it is.
        is_shared: Whether files of others may lie beside these; then each of ours that is there is
            written anew, and one of the same name that is not is never lost.
        keys: To what reads one, and raises a `UserError` if it is of no use; one that is there
            stays as it is, each other is made. Their folders are among `folders`.
    """

    files: Mapping[str, str | None]
    folders: Mapping[str, int] = field(default_factory=dict)
    is_shared: bool = False
    keys: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)


def _check(folder: Path, contents: FolderContents, *, force: bool) -> None:
    """Find out that all can be written and nothing would be lost, before anything is."""
    for name, text in contents.files.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            bad = (text or "")[error.start]
            raise UserError(
                f"{folder / name}: would hold {bad!r}, must be text in UTF-8; look for it in what "
                "was given"
            ) from error
    _check_kept(folder, contents, force=force)
    folders = {parent for name in (*contents.files, *contents.keys) for parent in _above(name)}
    for name in sorted(folders | contents.folders.keys()):
        if os.path.lexists(folder / name) and not os.path.isdir(folder / name):  # noqa: PTH112 - not for names that cannot be
            raise _in_the_way(folder / name, "folder")
    for name in (*contents.files, *contents.keys):
        if os.path.isdir(folder / name) and not os.path.islink(folder / name):  # noqa: PTH112, PTH114 - as above
            raise _in_the_way(folder / name, "file")
    for name, read in contents.keys.items():
        if os.path.lexists(folder / name):
            read(folder / name)


def _above(name: str) -> set[str]:
    return {str(parent) for parent in Path(name).parents} - {"."}


def _in_the_way(path: Path, wanted: str) -> UserError:
    found = "folder" if wanted == "file" else "file"
    return UserError(
        f"{path}: is a {found}, and a {wanted} is to be written there; move it away, or name "
        "another folder"
    )


def _check_kept(folder: Path, contents: FolderContents, *, force: bool) -> None:
    """Find out that nothing of somebody's own would be lost."""
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot be used: {reason}; name a folder") from error
    if found and not force and not contents.is_shared:
        raise UserError(
            f"{folder}: is not empty, holds {found[0]!r}; name another folder, or replace files of "
            "the same names with --force"
        )
    others = [
        name
        for name in contents.files
        if os.path.lexists(folder / name) and not is_ours(folder / name)
    ]
    if gone := [name for name in others if contents.files[name] is None]:
        raise UserError(
            f"{folder}: cannot hold beside what is to be written: {_shown(gone)}, which hetero-hvd "
            "deploy has not written and so does not remove; move it away, or name another folder"
        )
    if others and not force:
        raise UserError(
            f"{folder}: holds {_shown(others)}, which hetero-hvd deploy has not written; move it "
            "away, name another folder, or replace files of the same names with --force"
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + ", ..." * (len(names) > MAX_NAMES)


def is_ours(path: Path) -> bool:
    """Whether a command of ours has written a file, and so may lose it."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(MARK_BYTES)
    except OSError:
        return False


def write_folder(folder: Path, contents: FolderContents, *, force: bool = False) -> list[Path]:
    """Write each file, whole or not at all; none, where one cannot be, or something would be lost.

    Args:
        folder: Made if it is not there.
        contents: What it is to hold.
        force: Whether files of the same names may be replaced.

    Returns:
        The files, and then the keys.

    Raises:
        UserError: It is no folder, or holds something, and nobody has said that it may go; what
            was to be removed is not ours; something else has the name of a file or folder; a key
            that is there is none; or it cannot be written.
    """
    _check(folder, contents, force=force)
    written = _write_files(folder, contents.files)
    for name, mode in contents.folders.items():
        try:
            (folder / name).mkdir(mode=mode, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be made: {error.strerror}") from error
    for name in contents.keys:
        if not os.path.lexists(folder / name):
            make_key(folder / name)
    return [*written, *(folder / name for name in contents.keys)]


def _write_files(folder: Path, files: Mapping[str, str | None]) -> list[Path]:
    written = []
    for name, text in files.items():
        path = folder / name
        try:
            if text is None:
                path.unlink(missing_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode(), mode=AS_THE_UMASK_HAS_IT)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from error
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
