"""What was measured on this machine before, in the user's cache folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from hetero_hvd.whole_file import write_whole

MAX_FILE_BYTES = 2**20
"""A hundred times what a result has: nobody waits at a pipe, or reads a data set."""

logger = logging.getLogger(__name__)

Result = TypeVar("Result", bound=msgspec.Struct)


class _CachedResult(msgspec.Struct, frozen=True):
    """A file: what the measurement depends on, what was found, and whether all of it is valid."""

    key: dict[str, str]
    result: msgspec.Raw
    is_valid: bool


def cache_folder() -> Path:
    """By the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else _home() / ".cache"
    return root / "hetero_hvd" / "benchmarks"


def _home() -> Path:
    """Where a user whom the system does not know has none, `/`, as containers give it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def load(key: dict[str, str], kind: type[Result]) -> Result | None:
    """The valid result that was kept under a key; None if there is none that can be read."""
    try:
        entry = _read(_file(key))
        return msgspec.json.decode(entry.result, type=kind) if entry.is_valid else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s is ignored: %s", _file(key), error)
        return None


def entries(kind: type[Result]) -> Iterator[tuple[dict[str, str], Result]]:
    """All that was kept, with what it depends on, the newest first.

    Args:
        kind: Of the results; others are left out. Of what is not valid as a whole, parts can be.
    """
    dated = []
    for file in cache_folder().glob("*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            entry = _read(file)
            result = msgspec.json.decode(entry.result, type=kind)
            dated.append((file.stat().st_mtime, file.name, entry.key, result))
    for *_, key, result in sorted(dated, reverse=True, key=lambda one: one[:2]):
        yield key, result


def save(key: dict[str, str], result: msgspec.Struct, *, is_valid: bool) -> None:
    """Keep a result, atomically; a folder that cannot be written costs the next measurement.

    Args:
        key: What it depends on.
        result: What was found.
        is_valid: All of it. One that is not does not take the place of one that is.
    """
    file = _file(key)
    with contextlib.suppress(OSError, msgspec.DecodeError):
        if _read(file).is_valid and not is_valid:
            return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = _CachedResult(
            key=key, result=msgspec.Raw(msgspec.json.encode(result)), is_valid=is_valid
        )
        write_whole(file, msgspec.json.format(msgspec.json.encode(entry)) + b"\n")
    except OSError as error:
        logger.warning("%s cannot be written: %s", file, error)


def _read(file: Path) -> _CachedResult:
    found = file.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
        raise OSError(errno.EINVAL, "is no result: no file, or too large")
    return msgspec.json.decode(file.read_bytes(), type=_CachedResult)


def _file(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(sorted(key.items()))).hexdigest()
    return cache_folder() / f"{digest[:32]}.json"
