"""Checkpoints in an object store such as S3, through fsspec."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from hetero_hvd.data.file_system import as_os_errors, open_file_system
from hetero_hvd.errors import JobError, MissingPackageError, first_line, job_error
from hetero_hvd.worker.recovery.checkpoints.store import (
    NOT_THERE,
    PREFIX,
    CheckpointPart,
    Manifest,
    Writing,
    decoded,
    encoded,
)
from hetero_hvd.worker.recovery.checkpoints.writers import is_left, new_writer
from hetero_hvd.worker.recovery.replica import Unreadable

logger = logging.getLogger(__name__)

PAYLOAD, MANIFEST, BEGUN = ".pt", "manifest.json", "begun"


class ObjectStore:
    """See `CheckpointStore`; every node that reaches the address can read it.

    A checkpoint is two objects below its name: the payload, whose key holds its writer's series,
    its writer and its SHA-256, and the manifest. An object store has no rename, so the manifest,
    which is put last and only where there is none, makes the checkpoint one.

    Args:
        location: URL, such as s3://bucket/path.

    Raises:
        JobError: What reads such addresses is not installed here, or the URL is none for it.
    """

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        try:
            self._files, self._root = open_file_system(self._location)
        except MissingPackageError as error:
            raise JobError(f"checkpoints at {first_line(error)}") from error
        except OSError as error:
            raise job_error(f"checkpoints at {location}: {first_line(error)}", error) from error

    def place(self, name: str) -> str:
        """See `CheckpointStore`."""
        return f"{self._location}/{name}"

    def written_in(self) -> Path:
        """See `CheckpointStore`; the server's own room is not known."""
        return Path(tempfile.gettempdir())

    def listed(self) -> list[tuple[str, Manifest]]:
        """See `CheckpointStore`; a bucket that is not there is no empty one."""
        names = [name for name, keys in self._objects().items() if MANIFEST in keys]
        keys = {self._key(name, MANIFEST): name for name in names}
        with as_os_errors():
            contents = self._files.cat(list(keys), on_error="return") if keys else {}
        found = []
        for key, content in contents.items():
            try:
                found.append((keys[key], decoded(_given(content))))
            except (*NOT_THERE, msgspec.DecodeError) as error:
                logger.warning("%s is not taken: %s", self.place(keys[key]), first_line(error))
        return found

    def read(self, name: str, part: CheckpointPart | None = None) -> bytes:
        """See `CheckpointStore`."""
        try:
            digest = self._manifest(name).sha256 if part is None else part.sha256
            for key in self._objects(name).get(name, ()):
                if key.endswith(f"{digest}{PAYLOAD}"):
                    return self._get(name, key)
        except (*NOT_THERE, msgspec.DecodeError) as error:
            raise Unreadable(first_line(error)) from error
        raise Unreadable("its payload is gone")

    def put(self, name: str, write: Callable[[BinaryIO], Manifest], *, series: str) -> bool:
        """See `CheckpointStore`; it is written into a nameless file on this machine first."""
        return self._complete(name, f"{series}.{new_writer()}", write, series=series)

    def begin(self, name: str, *, series: str) -> str:
        """See `CheckpointStore`; an empty object marks it, with whose name all of it begins."""
        stem = f"{series}.{new_writer()}"
        with as_os_errors():
            self._files.pipe_file(self._key(name, f"{stem}.{BEGUN}"), b"")
        return f"{name}/{stem}"

    def has_begun(self, place: str) -> bool:
        """See `CheckpointStore`."""
        with as_os_errors():
            return bool(self._files.exists(f"{self._root}/{place}.{BEGUN}"))

    def put_part(self, place: str, part: str, write: Writing[CheckpointPart]) -> CheckpointPart:  # noqa: ARG002 - its digest names it
        """See `CheckpointStore`."""
        name, _, stem = place.partition("/")
        with tempfile.TemporaryFile() as file:
            found = write(file)
            file.flush()
            self._send(file, name, f"{stem}.{found.sha256}{PAYLOAD}")
        return found

    def finish(self, place: str, name: str, write: Writing[Manifest], *, series: str) -> bool:
        """See `CheckpointStore`."""
        stem = place.removeprefix(f"{name}/")
        is_new = False
        try:
            is_new = self._complete(name, stem, write, series=series)
        finally:
            if is_new:
                self._delete(name, f"{stem}.{BEGUN}")
            else:
                self.give_up(place)
        return is_new

    def give_up(self, place: str) -> None:
        """See `CheckpointStore`."""
        name, _, stem = place.partition("/")
        with suppress(OSError):
            for key in self._objects(name).get(name, ()):
                if key.startswith(f"{stem}."):
                    self._delete(name, key)

    def _complete(self, name: str, stem: str, write: Writing[Manifest], *, series: str) -> bool:
        """Put payload and manifest; whether there was no checkpoint of that name."""
        with tempfile.TemporaryFile() as file:
            manifest = write(file)
            content = encoded(manifest)
            file.flush()
            if self._has_manifest(name):
                return False
            payload = f"{stem}.{manifest.sha256}{PAYLOAD}"
            try:
                self._send(file, name, payload)
                now = self._modified(name, payload)
                is_new = self._create(self._key(name, MANIFEST), content)
            except BaseException:
                self._delete(name, payload)
                raise
        if not is_new:
            self._delete(name, payload)
        self._clear(series, now)
        return is_new

    def _send(self, file: BinaryIO, name: str, key: str) -> None:
        with as_os_errors():
            self._files.put_file(f"/proc/self/fd/{file.fileno()}", self._key(name, key))

    def add_metrics(self, name: str, metrics: Mapping[str, float | None]) -> None:
        """See `CheckpointStore`."""
        manifest = self._manifest(name)
        added = msgspec.structs.replace(manifest, metrics={**manifest.metrics, **metrics})
        content = encoded(added)
        with as_os_errors():
            self._files.pipe_file(self._key(name, MANIFEST), content)

    def remove(self, name: str) -> None:
        """See `CheckpointStore`; the manifest goes first, so that half a checkpoint is none."""
        self._delete(name, MANIFEST)
        with suppress(OSError):
            for key in self._objects(name).get(name, ()):
                self._delete(name, key)

    def _key(self, name: str, key: str) -> str:
        return f"{self._root}/{name}/{key}"

    def _objects(self, name: str = "") -> dict[str, list[str]]:
        """The keys below each name, or below one."""
        below = f"{self._root}/{name}".rstrip("/")
        with as_os_errors():
            paths = self._files.find(below)
        found: dict[str, list[str]] = {}
        for path in paths:
            parts = path.removeprefix(self._root).strip("/").split("/")
            if len(parts) == 2 and parts[0].startswith(PREFIX):  # noqa: PLR2004 - name and key
                found.setdefault(parts[0], []).append(parts[1])
        return found

    def _get(self, name: str, key: str) -> bytes:
        with as_os_errors():
            content: bytes = self._files.cat_file(self._key(name, key))
        return content

    def _manifest(self, name: str) -> Manifest:
        return decoded(self._get(name, MANIFEST))

    def _has_manifest(self, name: str) -> bool:
        with as_os_errors():
            return bool(self._files.exists(self._key(name, MANIFEST)))

    def _create(self, key: str, content: bytes) -> bool:
        """Put an object where there is none; whether there was none.

        Some servers do not know that condition; there a moment remains in which two writers of one
        checkpoint could both find that it is theirs: the payload of each is kept until then.
        """
        try:
            with as_os_errors():
                self._files.pipe_file(key, content, mode="create")
        except FileExistsError:
            return self._is_ours(key, content)
        except (OSError, NotImplementedError):
            with as_os_errors():
                if self._files.exists(key):
                    return self._is_ours(key, content)
                self._files.pipe_file(key, content)
        return True

    def _is_ours(self, key: str, content: bytes) -> bool:
        """Whether the object that is there is what was put: the answer to that may be lost."""
        with as_os_errors():
            return bool(self._files.cat_file(key) == content)

    def _delete(self, name: str, key: str) -> None:
        """As far as possible."""
        with suppress(OSError), as_os_errors():
            self._files.rm_file(self._key(name, key))

    def _modified(self, name: str, key: str) -> float:
        """When an object was put, by the server's clock."""
        with as_os_errors():
            found: datetime = self._files.modified(self._key(name, key))
        return found.timestamp()

    def _clear(self, series: str, now: float) -> None:
        """Remove what killed writers of a series have left: payloads without a manifest.

        Whose writer may be about to put the manifest stays.
        """
        with suppress(OSError):
            for name, keys in self._objects().items():
                if MANIFEST in keys:
                    continue
                for key in keys:
                    if not key.startswith(f"{series}."):
                        continue
                    writer = key.removeprefix(f"{series}.").partition(".")[0]
                    if is_left(writer, now - self._modified(name, key)):
                        self._delete(name, key)


def _given(content: bytes | Exception) -> bytes:
    """What one of several objects holds; an error that came in its place is raised."""
    if isinstance(content, bytes):
        return content
    with as_os_errors():
        raise content
