"""A file whose digest is known as soon as it is written."""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO, cast

import torch


class HashedFile:
    """Writes into a file, and knows the digest of it.

    Args:
        file: Empty; nobody else writes into it.

    Attributes:
        digest: SHA-256 of what was written.
        num_bytes: Of it.
        error: Why the file has not taken all of it; torch has a text of its own for that.
    """

    error: Exception | None = None

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, content: bytes | memoryview) -> int:
        """Add to the end of the file."""
        self.digest.update(content)
        self.num_bytes += len(content)
        try:
            return self._file.write(content)
        except Exception as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Called by torch."""
        self._file.flush()


def save_hashed(state: Any, file: BinaryIO) -> HashedFile:  # noqa: ANN401 - of any training
    """Write a state as torch does.

    Raises:
        Exception: The file's own, where it is that which has not taken all of it.
    """
    hashed = HashedFile(file)
    try:
        torch.save(state, cast("BinaryIO", hashed))
    except Exception:
        if hashed.error is not None:
            raise hashed.error from None
        raise
    return hashed
