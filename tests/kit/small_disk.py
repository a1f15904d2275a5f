"""A file system of a few kilobytes, which is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BALLAST = "ballast"


def missing_for_a_disk() -> str | None:
    """Why there can be none here, or None."""
    return None if os.geteuid() == 0 else "only root may mount a small disk"


@contextmanager
def small_disk(folder: Path, *, kilobytes: int = 256) -> Iterator[Path]:
    """A file system of its own, in a folder that is made for it."""
    folder.mkdir()
    vector = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "x", str(folder)]
    subprocess.run(vector, check=True)
    try:
        yield folder
    finally:
        vector = ["umount", "-l", str(folder)]
        subprocess.run(vector, check=True)


def fill(folder: Path) -> None:
    """Leave no byte."""
    with suppress(OSError), (folder / BALLAST).open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass


def make_room(folder: Path) -> None:
    """What filled it is gone."""
    (folder / BALLAST).unlink()
