"""Who may do what over HTTP: the roles `read` and `operate`, each with a token of its own."""

from __future__ import annotations

import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.config.kinds import is_loopback
from hetero_hvd.errors import ConfigError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4096


def read_token(path: str | None, setting: str) -> bytes | None:
    """The token in a file that nobody else can read; None without a file.

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
        raise ConfigError([f"job.{setting}: {path} cannot be read: {error.strerror}"]) from error
    if mode & 0o077:
        raise ConfigError(
            [f"job.{setting}: {path} has mode {mode:04o}, must be 0600: others could read it"]
        )
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or b"\n" in token:
        raise ConfigError(
            [f"job.{setting}: {path} must hold one line of {MIN_TOKEN_CHARACTERS} or more letters"]
        )
    return token


@dataclass(frozen=True, kw_only=True)
class Access:
    """What is asked of a request.

    Attributes:
        address: Where the server listens; on the loopback, requests must be addressed to it.
        read: Token of those who may look; None: everybody who reaches the server.
        operate: Token of those who may also drain and stop; None: nobody.
    """

    address: str
    read: bytes | None = None
    operate: bytes | None = None

    def is_addressed_here(self, host: str) -> bool:
        """Whether the Host header is one of ours: a page elsewhere cannot name us its own way."""
        if not is_loopback(self.address):
            return True
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return is_loopback(name.strip("[]"))

    def may_read(self, authorization: str) -> bool:
        """Whether a request with this header may look."""
        return (
            self.read is None or _holds(authorization, self.read) or self.may_operate(authorization)
        )

    def may_operate(self, authorization: str) -> bool:
        """Whether a request with this header may drain and stop."""
        return self.operate is not None and _holds(authorization, self.operate)


def _holds(authorization: str, token: bytes) -> bool:
    scheme, _, found = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(found.strip().encode(), token)
