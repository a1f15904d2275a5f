"""Files of a source, or parts of them, kept on this node within a number of bytes."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO

from hetero_hvd.errors import first_line
from hetero_hvd.probes.benchmark_cache import cache_folder

logger = logging.getLogger(__name__)

DEFAULT_BYTES = 10 * 2**30
FREE_RATIO = 0.5
"""The cache takes at most this part of what is free, and of what it holds already."""

ROOM_RATIO = 0.9
"""When it is full, what was used longest ago goes until so much is left."""

LOCK_SECONDS = 10.0
"""So long a process waits for others, of which each mostly has the lock for milliseconds."""

LOCK, TOTAL, PENDING, SUFFIX = "lock", "total", "pending", ".part"
CHECK_BYTES = 4


class Cache:
    """Parts of files by a key; used by any number of processes on a node at once.

    What is read is checked by a checksum; what is put is there as a whole or not at all. Where it
    cannot be written (no room, no right, a process that has its lock and does not go on), one line
    says so, and this process keeps nothing more; what is there already it goes on using.

    Args:
        folder: Where it is; made if it is not there. None: in the user's cache folder.
        max_bytes: Of all parts together, >= 0; 0: nothing is kept.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = DEFAULT_BYTES) -> None:
        self._folder = folder or cache_folder().with_name("data")
        self._max_bytes = max_bytes
        self._is_off = max_bytes <= 0
        self._keeps = not self._is_off

    def get(self, key: str) -> bytes | None:
        """What was put under a key; None if it is not there, or damaged."""
        if self._is_off:
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        body = content[CHECK_BYTES:]
        if content[:CHECK_BYTES] != _check(body):
            logger.warning("%s is damaged: it is read from its source again", path)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # it was used just now
        return body

    def put(self, key: str, body: bytes) -> None:
        """Keep something, as far as there is room for it."""
        if not self._keeps or len(body) + CHECK_BYTES > ROOM_RATIO * self._max_bytes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._put(self._path(key), body)
        except OSError as error:
            self._keeps = False
            words = "%s: %s: this process keeps no data there any more"
            logger.warning(words, self._folder, first_line(error))

    def _put(self, path: Path, body: bytes) -> None:
        size = len(body) + CHECK_BYTES
        if path.exists():
            return
        total = self._total() + size
        if total > self._limit(total - size):
            total = self._make_room(size) + size
        self._set_total(total)  # before the file is there: who dies in between leaves no excess
        pending = self._folder / PENDING  # one at a time, and what a dead one has left is replaced
        with pending.open("wb") as file:
            file.write(_check(body))
            file.write(body)
        path.parent.mkdir(exist_ok=True)
        pending.replace(path)

    def _limit(self, held_bytes: int) -> float:
        """What it may hold now."""
        found = os.statvfs(self._folder)
        return min(self._max_bytes, FREE_RATIO * (found.f_bavail * found.f_frsize + held_bytes))

    def _make_room(self, size: int) -> int:
        """Remove what was used longest ago; gives the bytes that are left."""
        parts = []
        for path in self._folder.glob(f"??/*{SUFFIX}"):
            with suppress(OSError):
                found = path.stat()
                parts.append((found.st_mtime_ns, found.st_size, path))
        left = sum(part_size for _, part_size, _ in parts)
        wanted = ROOM_RATIO * self._limit(left) - size
        for _, part_size, path in sorted(parts):
            if left <= wanted:
                break
            with suppress(OSError):
                path.unlink()
                left -= part_size
        return left

    def _total(self) -> int:
        try:
            return int((self._folder / TOTAL).read_text())
        except (OSError, ValueError):
            return sum(path.stat().st_size for path in self._folder.glob(f"??/*{SUFFIX}"))

    def _set_total(self, total: int) -> None:
        (self._folder / TOTAL).write_text(str(total))

    def _path(self, key: str) -> Path:
        name = sha256(key.encode(errors="surrogateescape")).hexdigest()
        return self._folder / name[:2] / f"{name}{SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone on this node; the lock goes with a process that dies.

        Raises:
            TimeoutError: Another process has had it all the time.
        """
        file = (self._folder / LOCK).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _await_lock(file)
        try:
            yield
        finally:
            _release(file)


def _await_lock(file: IO[str]) -> None:
    """Wait in the kernel's queue, which is fair, and not for ever: a thread does it.

    Raises:
        TimeoutError: It is not our turn yet; the thread gives back what it gets later.
    """
    taken: Future[None] = Future()

    def wait() -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
        if taken.set_running_or_notify_cancel():
            taken.set_result(None)
        else:
            _release(file)

    threading.Thread(target=wait, name="cache lock", daemon=True).start()
    try:
        taken.result(LOCK_SECONDS)
    except TimeoutError:
        if taken.cancel():
            raise TimeoutError(
                f"another process has had its lock for {LOCK_SECONDS:g} s and does not go on"
            ) from None
        taken.result()


def _release(file: IO[str]) -> None:
    """Also where a forked child has the file open as well."""
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(CHECK_BYTES)
