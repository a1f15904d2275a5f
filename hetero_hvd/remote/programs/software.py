"""Which software an interpreter has; the same functions here and on a node."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(package: Path) -> str:
    """Equal for packages with equal files; what Python compiles by itself does not count."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(package)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
