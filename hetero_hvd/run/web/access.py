"""Who may do what over HTTP: roles with a token each, and where a request comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.security.token import TokenFile, holds, shown_token

Role = Literal["read", "ingest", "operate", "queue"]


@dataclass(frozen=True, kw_only=True)
class Access:
    """What is asked of a request.

    Attributes:
        address: Where the server listens; on the loopback, requests must be addressed to it.
        read: Token of those who may look; None: everybody who reaches the server.
        operate: Token of those who may do all; None: nobody.
        ingest: Token of those who may send samples; None: nobody but who may operate.
        origins: Of pages elsewhere that may ask.
        is_user: Whether a token is that of a user of the queue; nobody else has its role.
    """

    address: str
    read: TokenFile | None = None
    operate: TokenFile | None = None
    ingest: TokenFile | None = None
    origins: tuple[str, ...] = ()
    is_user: Callable[[bytes], bool] | None = None

    def is_addressed_here(self, host: str) -> bool:
        """Whether the Host header is one of ours: a page elsewhere cannot name us its own way."""
        if not is_loopback(self.address):
            return True
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return is_loopback(name.strip("[]"))

    def is_from_here(self, origin: str, host: str) -> bool:
        """Whether a page that asks is of this server, or listed."""
        return not origin or origin in self.origins or origin.partition("://")[2] == host

    def may(self, role: Role, authorization: str) -> bool:
        """Whether a request with this header may act in a role."""
        if role == "read" and self.read is None:
            return True
        if role == "queue":
            return self.is_user is not None and self.is_user(shown_token(authorization))
        return any(holds(authorization, token) for token in self._tokens(role))

    def why_not(self, role: Role, authorization: str) -> str:
        """What to do for who may not act in a role, in words.

        Args:
            role: That was asked for.
            authorization: The header that did not do.
        """
        send = "send Authorization: Bearer TOKEN"
        has_one = bool(shown_token(authorization))
        if role == "queue" and self.is_user is not None:
            what = "the token is none of a user's" if has_one else "needs the token of a user"
            return f"{what}: {send}"
        files = () if role == "queue" else self._files(role)
        if not files:
            return f"this server was started without a token of the role {role!r}, so nobody may"
        if not any(self._tokens(role)):
            return (
                f"the file with the token of the role {role!r} cannot be used, so nobody may until "
                f"it is mended: who has started this server finds why where it tells of itself "
                f"({files[0].setting})"
            )
        enter = f"enter it on the page, or {send}"
        if role == "read":
            enter = f"add #token=TOKEN to the page's address, or {send}"
        if not has_one:
            return f"needs the token of the role {role!r}: {enter}"
        return (
            f"the token is not that of the role {role!r} here, which is in the file that "
            f"{files[0].setting} names: {enter}"
        )

    def look(self) -> None:
        """See whether the files have changed, so that it is told at once."""
        for file in (self.read, self.operate, self.ingest):
            if file is not None:
                file.look()

    def _files(self, role: Role) -> tuple[TokenFile, ...]:
        own = {"read": self.read, "ingest": self.ingest, "operate": None, "queue": None}[role]
        return tuple(file for file in (own, self.operate) if file is not None)

    def _tokens(self, role: Role) -> list[bytes]:
        """Each of which is enough; an empty one is none."""
        return [file.current for file in self._files(role)]
