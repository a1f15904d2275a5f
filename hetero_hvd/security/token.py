"""Tokens for HTTP: files that only their owner can read, and the header that shows one."""

from __future__ import annotations

import hmac
import re
from pathlib import Path

from hetero_hvd.errors import ConfigError
from hetero_hvd.security.secret_files import read_secret

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4096
_TOKEN = re.compile(rb"[ -~]{%d,}" % MIN_TOKEN_CHARACTERS)
"""What a header can show."""


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
        mode, content = read_secret(Path(path), MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error.strerror}"]) from error
    if mode & 0o077:
        raise ConfigError(
            [f"{setting}: {path} has mode {mode:04o}, must be 0600: others could read it"]
        )
    token = content.strip()
    if len(content) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
        needed = f"one line of {MIN_TOKEN_CHARACTERS} or more letters, digits and signs of ASCII"
        raise ConfigError([f"{setting}: {path} must hold {needed}, at most {MAX_TOKEN_BYTES}"])
    return token


def shown_token(authorization: str) -> bytes:
    """The token that an Authorization header shows, in whatever way; empty: none."""
    scheme, _, found = authorization.partition(" ")
    shown = found.strip().encode(errors="replace")  # a stranger's header may hold any character
    return shown if scheme.lower() == "bearer" else b""


def holds(authorization: str, token: bytes) -> bool:
    """Whether an Authorization header shows this token."""
    return hmac.compare_digest(shown_token(authorization), token)
