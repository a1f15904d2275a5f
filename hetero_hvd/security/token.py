"""Tokens for HTTP: files that only their owner can read, and the header that shows one."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from hetero_hvd.errors import ConfigError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4096


def read_token(path: str | None, setting: str) -> bytes | None:
    """The token in a file that nobody else can read; None without a file.

    Args:
        path: The file.
        setting: Which names it, for the message.

    Raises:
        ConfigError: The file is missing, open to others, or holds no token.
    """
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(MAX_TOKEN_BYTES).strip()
    except OSError as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error.strerror}"]) from error
    if mode & 0o077:
        raise ConfigError(
            [f"{setting}: {path} has mode {mode:04o}, must be 0600: others could read it"]
        )
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or b"\n" in token:
        raise ConfigError(
            [f"{setting}: {path} must hold one line of {MIN_TOKEN_CHARACTERS} or more letters"]
        )
    return token


def holds(authorization: str, token: bytes) -> bool:
    """Whether an Authorization header shows this token."""
    scheme, _, found = authorization.partition(" ")
    shown = found.strip().encode(errors="replace")  # a stranger's header may hold any character
    return scheme.lower() == "bearer" and hmac.compare_digest(shown, token)
