"""Who may do what over HTTP: the roles `read` and `operate`, each with a token of its own."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.security.token import holds


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
            self.read is None or holds(authorization, self.read) or self.may_operate(authorization)
        )

    def may_operate(self, authorization: str) -> bool:
        """Whether a request with this header may drain and stop."""
        return self.operate is not None and holds(authorization, self.operate)
