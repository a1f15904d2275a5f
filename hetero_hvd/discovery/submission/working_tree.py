"""The files of a folder that a job is made of: packed when it is submitted, unpacked to run.

Standard library only, as what runs a job unpacks them.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from hetero_hvd.errors import UserError, job_error

MAX_TREE_BYTES = 64 * 2**20
"""Of a working tree, packed."""

MEBIBYTE = 2**20
HANDED_OVER = Path("submitted")
"""Where jobs for other queues are written unless another folder is named."""

LEFT_OUT = frozenset(
    {".git", "__pycache__", "runs", "hub", str(HANDED_OVER), ".venv", "node_modules"}
)
"""Of a folder that is no repository: what a job makes, or is not made of."""


def packed_tree(folder: Path, files: Sequence[Path] | None = None) -> bytes:
    """The files of a folder as they are now; those that git ignores are left out.

    Links stay links, as to data; but of a module elsewhere its text is taken.

    Args:
        folder: Of all of it.
        files: Which of them; None: all.

    Raises:
        UserError: They are too many, or cannot be read.
    """
    stream = io.BytesIO()
    num_bytes, largest = 0, (0, Path())
    try:
        with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
            for path in sorted(files_of(folder)) if files is None else files:
                size = path.lstat().st_size
                num_bytes += size
                largest = max(largest, (size, path))
                if num_bytes > MAX_TREE_BYTES:
                    raise UserError(
                        f"{folder.absolute()}: has more than {MAX_TREE_BYTES // MEBIBYTE} MiB "
                        f"({largest[1]} {largest[0] // MEBIBYTE} MiB), which a job takes with it: "
                        "keep data elsewhere, or list it in .gitignore"
                    )
                archive.dereference = path.suffix == ".py" and path.is_file()
                archive.add(path, path.relative_to(folder), recursive=False)
    except OSError as error:
        raise job_error(f"{error.filename}: cannot be read: {error.strerror}", error) from error
    return stream.getvalue()


def files_of(folder: Path) -> Iterator[Path]:
    """Files and links; of a repository those that git has or does not ignore."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:  # there is no git
        done = None
    if done is not None and done.returncode == 0:
        paths = {folder / os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
        yield from (path for path in paths if path.is_file() or path.is_symlink())
        return
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found = (Path(root) / name for name in (*names, *folders))
        yield from (path for path in found if path.is_symlink() or path.is_file())


def unpack(packed: IO[bytes], folder: Path) -> None:
    """Make a folder of a working tree.

    Args:
        packed: What `packed_tree` has made.
        folder: Is made.

    Raises:
        OSError: The disk does not take it.
        tarfile.TarError: It is no such thing.
    """
    folder.mkdir()
    with tarfile.open(fileobj=packed) as archive:
        if hasattr(tarfile, "tar_filter"):  # before Python 3.11.4 there is none; it is our own file
            archive.extraction_filter = tarfile.tar_filter
        archive.extractall(folder)  # noqa: S202 - by who has packed it
