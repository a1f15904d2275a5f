"""What was measured on this machine before, in the user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

Result = TypeVar("Result", bound=msgspec.Struct)


def cache_folder() -> Path:
    """By the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "hetero_hvd" / "benchmarks"


def load(key: dict[str, str], kind: type[Result]) -> Result | None:
    """The result that was kept under a key; None if there is none that can be read."""
    try:
        return msgspec.json.decode(_file(key).read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s is ignored: %s", _file(key), error)
        return None


def save(key: dict[str, str], result: msgspec.Struct) -> None:
    """Keep a result, atomically; a folder that cannot be written costs the next measurement."""
    file = _file(key)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        fresh.replace(file)
    except OSError as error:
        logger.warning("%s cannot be written: %s", file, error)


def _file(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(sorted(key.items()))).hexdigest()
    return cache_folder() / f"{digest[:32]}.json"
