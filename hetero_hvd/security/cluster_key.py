"""The cluster key: who holds it may announce nodes and start workers on them."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from hetero_hvd.errors import UserError
from hetero_hvd.security.secret_files import read_secret, write_secret

KEY_BYTES = 32
MAX_SECRET_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_key(path: Path, *, replaces: bool = False) -> None:
    """Write a fresh 256-bit key as one line of hexadecimal digits, readable by its owner alone.

    Args:
        path: Where.
        replaces: Whether it takes the place of one that is there; who reads it meanwhile reads the
            whole of either.

    Raises:
        UserError: The file exists already, or cannot be made.
    """
    content = f"{secrets.token_hex(KEY_BYTES)}\n".encode()
    if not replaces:
        write_secret(path, content)
        return
    _see_that_it_is_a_secret(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_secret(fresh, content)
    try:
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be replaced: {error.strerror}") from error


def _see_that_it_is_a_secret(path: Path) -> None:
    """What is replaced is gone, so it must be a file of one word, as keys and tokens are."""
    try:
        _, content = read_secret(path, MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be replaced: {error.strerror}") from error
    if path.is_symlink() or len(content) > MAX_SECRET_BYTES or len(content.split()) > 1:
        raise UserError(
            f"{path}: is not a file with a key or token and nothing else, so it is not replaced"
        )


def read_key(path: Path) -> bytes:
    """Read a key.

    Returns:
        32 bytes.

    Raises:
        UserError: It cannot be read, others can read it too, or it is not a key.
    """
    try:
        mode, content = read_secret(path, 4 * KEY_BYTES)
    except OSError as error:
        advice = ""
        if isinstance(error, FileNotFoundError):
            advice = f"; copy it from another node, or make the first with: hetero-hvd key {path}"
        raise UserError(
            f"{path}: the cluster key cannot be read: {error.strerror}{advice}"
        ) from error
    if mode & _OTHERS:
        raise UserError(
            f"{path}: found mode {mode:04o}, but a cluster key must be closed to "
            f"others; run: chmod 600 {path}"
        )
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(f"{path}: is no cluster key, must hold 64 hexadecimal digits")
    return key
