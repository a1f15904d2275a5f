"""The cluster key: who holds it may announce nodes and start workers on them."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from hetero_hvd.errors import UserError

KEY_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_key(path: Path) -> None:
    """Write a fresh 256-bit key as one line of hexadecimal digits, readable by its owner alone.

    Raises:
        UserError: The file exists already, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{path}: exists already; a key is never overwritten") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(KEY_BYTES)}\n")


def read_key(path: Path) -> bytes:
    """Read a key.

    Returns:
        32 bytes.

    Raises:
        UserError: It cannot be read, others can read it too, or it is not a key.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4 * KEY_BYTES)
    except OSError as error:
        raise UserError(f"{path}: the cluster key cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise UserError(
            f"{path}: found mode {stat.S_IMODE(mode):04o}, but a cluster key must be closed to "
            f"others; run: chmod 600 {path}"
        )
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(f"{path}: is no cluster key, must hold 64 hexadecimal digits")
    return key
