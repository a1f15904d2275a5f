"""The secrets of one job, made when it starts and gone with it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from hetero_hvd import channel
from hetero_hvd.messages.launch import KEY_VARIABLE, TLS_VARIABLE

DRIVER_NAME = "driver"
"""In the driver's certificate; what workers expect of it."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What the two ends of a job's channels know of each other.

    Attributes:
        key: The job's key.
        tls: For the driver's port; None: the channel is signed, but not secret.
        environment: What a worker is given; on its standard input, never on a command line.
    """

    key: bytes
    tls: ssl.SSLContext | None = None
    environment: dict[str, str] = field(repr=False)

    @classmethod
    def new(cls, *, tls: bool) -> Credentials:
        """Those of a new job.

        Args:
            tls: With certificates of an authority that signs nothing else, and that nobody keeps.
        """
        key = channel.new_key()
        environment = {KEY_VARIABLE: key.hex()}
        if not tls:
            return cls(key=key, environment=environment)
        from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy
        from hetero_hvd.security.tls import server_context  # noqa: PLC0415

        authority = Authority.new()
        environment[TLS_VARIABLE] = authority.issue("worker", roles=["client"]).decode("ascii")
        context = server_context(authority.issue(DRIVER_NAME, roles=["server"]))
        return cls(key=key, tls=context, environment=environment)
