"""Which places for checkpoints there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from hetero_hvd.errors import JobError
from hetero_hvd.worker.recovery.checkpoints.folder_store import FolderStore
from hetero_hvd.worker.recovery.checkpoints.object_store import ObjectStore
from hetero_hvd.worker.recovery.checkpoints.store import CheckpointStore

STORES: dict[str, Callable[[str], CheckpointStore]] = {
    "": FolderStore,
    "file": lambda location: FolderStore(unquote(urlsplit(location).path)),
    "s3": ObjectStore,
    "gs": ObjectStore,
}
"""Scheme of a location, without ://, to what makes a store of the location; a path has none."""


def store_at(location: str) -> CheckpointStore:
    """The store at a location.

    Raises:
        JobError: There is none of that kind.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", location)
    scheme = found[1] if found else ""
    if scheme not in STORES:
        others = "".join(f" or begin with {name}://" for name in STORES if name)
        raise JobError(f"checkpoints at {location}: no such store; must be a path{others}")
    return STORES[scheme](location)
