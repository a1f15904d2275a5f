"""Tokens for HTTP: files that only their owner can read, and the header that shows one."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable
from pathlib import Path

from hetero_hvd.errors import ConfigError
from hetero_hvd.security.secret_files import read_secret

logger = logging.getLogger(__name__)

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


class TokenFile:
    """The token of a file, as it is now: who writes another one into it needs no restart.

    A file that was replaced may have been so to take the token before from somebody. So while it
    cannot be used nobody has a token, neither the one before nor another one.

    Args:
        path: The file.
        setting: Which names it, for messages.
        say: Tells people that it cannot be used, and that it can again, once each.

    Attributes:
        setting: As above.

    Raises:
        ConfigError: As `read_token`.
    """

    def __init__(self, path: str, setting: str, say: Callable[[str], None] | None = None) -> None:
        self.setting = setting
        self._path = path
        self._say = say or logger.warning
        self._fault = ""
        self._stamp = self._stamped()
        self._token = read_token(path, setting) or b""

    @property
    def current(self) -> bytes:
        """The token; empty, which no token is: the file is gone or holds none."""
        self.look()
        return self._token

    def look(self) -> None:
        """See whether the file has changed, so that it is told at once; call it often."""
        stamp = self._stamped()
        if stamp != self._stamp or self._fault:  # what the system refuses may pass
            self._stamp = stamp
            self._read()

    def _read(self) -> None:
        try:
            self._token, fault = read_token(self._path, self.setting) or b"", ""
        except ConfigError as error:
            self._token, fault = b"", str(error)
        if fault and fault != self._fault:
            self._say(f"{fault}; nobody has this token until the file is mended")
        elif self._fault and not fault:
            self._say(f"{self.setting}: {self._path} is read again")
        self._fault = fault

    def _stamped(self) -> tuple[int, ...] | None:
        """Changes with the file and its mode; None: it cannot be seen."""
        try:
            told = Path(self._path).stat()
        except OSError:
            return None
        return told.st_ino, told.st_mode, told.st_mtime_ns, told.st_size


def token_file(
    path: str | None, setting: str, say: Callable[[str], None] | None = None
) -> TokenFile | None:
    """The token of a file, if there is one; see `TokenFile`."""
    return None if path is None else TokenFile(path, setting, say)


def shown_token(authorization: str) -> bytes:
    """The token that an Authorization header shows, in whatever way; empty: none."""
    scheme, _, found = authorization.partition(" ")
    shown = found.strip().encode(errors="replace")  # a stranger's header may hold any character
    return shown if scheme.lower() == "bearer" else b""


def holds(authorization: str, token: bytes) -> bool:
    """Whether an Authorization header shows this token; an empty one is none."""
    return bool(token) and hmac.compare_digest(shown_token(authorization), token)
