"""Checkpoints in a folder, each a folder of its own, which comes there by its last rename."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from hetero_hvd.run.records.run_files import sync_folder
from hetero_hvd.worker.recovery.checkpoints.store import (
    NOT_THERE,
    PREFIX,
    CheckpointPart,
    Manifest,
    T,
    Writing,
    decoded,
    encoded,
)
from hetero_hvd.worker.recovery.checkpoints.writers import is_left, new_writer
from hetero_hvd.worker.recovery.replica import Unreadable

logger = logging.getLogger(__name__)

STATE, MANIFEST = "state.pt", "manifest.json"


class FolderStore:
    """See `CheckpointStore`; whoever else is to read it needs the same file system.

    Args:
        location: Path of the folder, which is made when something is put into it.
    """

    def __init__(self, location: str) -> None:
        self._folder = Path(location)

    def place(self, name: str) -> str:
        """See `CheckpointStore`."""
        return str(self._folder / name)

    def written_in(self) -> Path:
        """See `CheckpointStore`."""
        return self._folder

    def listed(self) -> list[tuple[str, Manifest]]:
        """See `CheckpointStore`."""
        found = []
        try:
            paths = [path for path in self._folder.iterdir() if path.name.startswith(PREFIX)]
        except NOT_THERE:
            return []
        for path in paths:
            try:
                manifest = decoded((path / MANIFEST).read_bytes())
            except (*NOT_THERE, msgspec.DecodeError) as error:
                logger.warning("%s is not taken: %s", path, error)
                continue
            found.append((path.name, manifest))
        return found

    def read(self, name: str, part: CheckpointPart | None = None) -> bytes:
        """See `CheckpointStore`."""
        file = STATE if part is None else Path(part.name).name
        try:
            return (self._folder / name / file).read_bytes()
        except NOT_THERE as error:
            raise Unreadable(str(error)) from error

    def put(self, name: str, write: Callable[[BinaryIO], Manifest], *, series: str) -> bool:
        """See `CheckpointStore`; written under a hidden name, and synchronised with the disk."""
        return self.finish(self.begin(name, series=series), name, write, series=series)

    def begin(self, name: str, *, series: str) -> str:
        """See `CheckpointStore`."""
        place = f".{series}.{name}.{new_writer()}"
        (self._folder / place).mkdir(parents=True)
        return place

    def has_begun(self, place: str) -> bool:
        """See `CheckpointStore`."""
        return (self._folder / place).is_dir()

    def put_part(self, place: str, part: str, write: Writing[CheckpointPart]) -> CheckpointPart:
        """See `CheckpointStore`."""
        return _written(self._folder / place / part, write)

    def finish(self, place: str, name: str, write: Writing[Manifest], *, series: str) -> bool:
        """See `CheckpointStore`."""
        partial = self._folder / place
        try:
            now = _touched(partial)
            _write_manifest(partial, _written(partial / STATE, write))
            is_new = _renamed(partial, self._folder / name)
            sync_folder(self._folder)
        finally:
            self.give_up(place)
        self._clear(series, now)
        return is_new

    def give_up(self, place: str) -> None:
        """See `CheckpointStore`."""
        shutil.rmtree(self._folder / place, ignore_errors=True)

    def add_metrics(self, name: str, metrics: Mapping[str, float | None]) -> None:
        """See `CheckpointStore`."""
        manifest = decoded((self._folder / name / MANIFEST).read_bytes())
        added = msgspec.structs.replace(manifest, metrics={**manifest.metrics, **metrics})
        _write_manifest(self._folder / name, added)

    def remove(self, name: str) -> None:
        """See `CheckpointStore`."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _clear(self, series: str, now: float) -> None:
        """Remove what killed writers of a series have left; who still writes is let alone."""
        for path in self._folder.iterdir():
            if path.name.startswith(f".{series}."):
                writer = path.name.rpartition(".")[2]
                with suppress(OSError):  # its writer is done
                    if is_left(writer, now - _last_change(path)):
                        shutil.rmtree(path, ignore_errors=True)


def _touched(partial: Path) -> float:
    """Now, by the clock of whoever keeps the files."""
    partial.touch()
    return partial.stat().st_mtime


def _written(path: Path, write: Writing[T]) -> T:
    """A file, which is on the disk then."""
    with path.open("w+b") as file:
        found = write(file)
        file.flush()
        os.fsync(file.fileno())
    return found


def _last_change(partial: Path) -> float:
    """Of what is written there."""
    return max(path.stat().st_mtime for path in (partial, *partial.iterdir()))


def _renamed(partial: Path, path: Path) -> bool:
    """Whether it could be renamed; not if there is something of that name already."""
    try:
        partial.rename(path)
    except OSError:
        if not path.exists():
            raise
        return False
    return True


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Whole or not at all."""
    content = encoded(manifest)
    partial = folder / f".{MANIFEST}.{os.getpid()}"
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)
    sync_folder(folder)
