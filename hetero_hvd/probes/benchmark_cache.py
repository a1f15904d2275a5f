"""What was measured on this machine before, in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

Result = TypeVar("Result", bound=msgspec.Struct)


class _Entry(msgspec.Struct, frozen=True):
    """A file: what the measurement depends on, and what was found."""

    key: dict[str, str]
    result: msgspec.Raw


def cache_folder() -> Path:
    """By the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "hetero_hvd" / "benchmarks"


def load(key: dict[str, str], kind: type[Result]) -> Result | None:
    """The result that was kept under a key; None if there is none that can be read."""
    try:
        return _read(_file(key), kind)[1]
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s is ignored: %s", _file(key), error)
        return None


def entries(kind: type[Result]) -> Iterator[tuple[dict[str, str], Result]]:
    """All that was kept, with what it depends on, the newest first.

    Args:
        kind: Of the results; a union of tagged records too. Others are left out.
    """
    dated = []
    for file in cache_folder().glob("*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            dated.append((file.stat().st_mtime, file.name, _read(file, kind)))
    for *_, entry in sorted(dated, reverse=True, key=lambda one: one[:2]):
        yield entry


def save(key: dict[str, str], result: msgspec.Struct) -> None:
    """Keep a result, atomically; a folder that cannot be written costs the next measurement."""
    file = _file(key)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = _Entry(key=key, result=msgspec.Raw(msgspec.json.encode(result)))
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(entry)) + b"\n")
        fresh.replace(file)
    except OSError as error:
        logger.warning("%s cannot be written: %s", file, error)


def _read(file: Path, kind: type[Result]) -> tuple[dict[str, str], Result]:
    entry = msgspec.json.decode(file.read_bytes(), type=_Entry)
    return entry.key, msgspec.json.decode(entry.result, type=kind)


def _file(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(sorted(key.items()))).hexdigest()
    return cache_folder() / f"{digest[:32]}.json"
