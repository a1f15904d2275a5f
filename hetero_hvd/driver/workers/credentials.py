"""The secrets of one job, made when it starts and gone with it."""

from __future__ import annotations

import ssl

from hetero_hvd.channel import DRIVER_NAME
from hetero_hvd.messages.launch import TLS_VARIABLE
from hetero_hvd.security.tls import server_context


class Credentials:
    """By what the two ends of a job's channels know each other: certificates of its own authority.

    The authority signs for this job only, and nobody keeps it.

    Attributes:
        tls: For the driver's port.
    """

    def __init__(self) -> None:
        from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy

        self._authority = Authority.new()
        self.tls: ssl.SSLContext = server_context(
            self._authority.issue(DRIVER_NAME, roles=["server"])
        )

    def for_worker(self, host: str) -> dict[str, str]:
        """What one start of a worker is given; on standard input, never on a command line.

        Args:
            host: Its name as a Horovod host: under no other name will the driver hear it.
        """
        bundle = self._authority.issue(host, roles=["client"])
        return {TLS_VARIABLE: bundle.decode("ascii")}
