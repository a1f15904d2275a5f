"""A file whose digest is known as soon as it is written."""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO, cast

import torch

from hetero_hvd.worker.recovery.checkpoints.background import Beside

PIECE_BYTES = 2**23
"""Digested and written at once: some milliseconds."""

SMALL_BYTES = 2**20
"""Up to this size it costs more to have it done by another thread."""


class HashedFile:
    """Writes into a file, and knows the digest of it.

    Args:
        file: Empty; nobody else writes into it.
        beside: Does it.

    Attributes:
        digest: SHA-256 of what was written.
        num_bytes: Of it.
        error: Why the file has not taken all of it; torch has a text of its own for that.
    """

    error: Exception | None = None

    def __init__(self, file: BinaryIO, beside: Beside) -> None:
        self._file = file
        self._beside = beside
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, content: bytes | memoryview) -> int:
        """Add to the end of the file."""
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), PIECE_BYTES):
            self._add(whole[start : start + PIECE_BYTES])
        return len(whole)

    def _add(self, piece: memoryview) -> None:
        def add() -> None:
            self.digest.update(piece)
            self._file.write(piece)

        try:
            if len(piece) > SMALL_BYTES:
                self._beside.run(add)
            else:
                add()
        except Exception as error:
            self.error = error
            raise
        self.num_bytes += len(piece)

    def flush(self) -> None:
        """Called by torch."""
        self._file.flush()


def save_hashed(
    state: Any,  # noqa: ANN401 - of any training
    file: BinaryIO,
    beside: Beside,
) -> HashedFile:
    """Write a state as torch does.

    Raises:
        Exception: The file's own, where it is that which has not taken all of it.
    """
    hashed = HashedFile(file, beside)
    try:
        torch.save(state, cast("BinaryIO", hashed))
    except Exception:
        if hashed.error is not None:
            raise hashed.error from None
        raise
    return hashed
