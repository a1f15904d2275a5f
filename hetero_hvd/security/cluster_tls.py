"""TLS between driver, agents and hub: by the cluster key, or by the user's own certificates.

From the cluster key follows an authority, the same for all who hold the key. Each end makes its
own certificate with it, in memory, for one role. Who holds the key is trusted in both.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from hetero_hvd.security.tls import client_context, read_bundle, server_context

DRIVER_NAME = "driver"
"""In the certificate of who may have something started, whoever has signed it."""

_AGENT_NAME = "agent"
_HUB_NAME = "hub"


class ClientTls(NamedTuple):
    """How a driver reaches an agent, or anybody the hub.

    Attributes:
        context: With the own certificate, and the authority of the other end's.
        name: For which the other end's certificate must be.
        by_key: Whether both follow from the cluster key.
    """

    context: ssl.SSLContext
    name: str
    by_key: bool


def for_agent(key: bytes) -> ssl.SSLContext:
    """For the port of an agent, by the cluster key."""
    from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy

    return server_context(Authority.of_key(key).issue(_AGENT_NAME, roles=["server"]))


def for_driver(key: bytes) -> ClientTls:
    """For who asks an agent for a worker, by the cluster key."""
    from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy

    bundle = Authority.of_key(key).issue(DRIVER_NAME, roles=["client"])
    return ClientTls(client_context(bundle), _AGENT_NAME, by_key=True)


def for_hub(key: bytes) -> ssl.SSLContext:
    """For the port of the hub, by the cluster key."""
    from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy

    return server_context(Authority.of_key(key).issue(_HUB_NAME, roles=["server"]))


def for_hubs_client(key: bytes) -> ClientTls:
    """For who tells the hub of a node, or orders something there, by the cluster key."""
    from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy

    bundle = Authority.of_key(key).issue(_AGENT_NAME, roles=["client"])
    return ClientTls(client_context(bundle), _HUB_NAME, by_key=True)


def for_driver_with(file: Path, node: str) -> ClientTls:
    """The same by a TLS file; the agent's certificate must be for its node.

    Raises:
        UserError: The file cannot be used.
    """
    return ClientTls(client_context(read_bundle(file), str(file)), node, by_key=False)
