"""Which of the driver's own addresses a node should use."""

from __future__ import annotations

import socket

from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import JobError

LOOPBACK = "127.0.0.1"


def address_towards(node: NodeConfig) -> str:
    """The driver's IPv4 address on the way to a node, as the kernel would route it.

    Nothing is sent: connecting a UDP socket only asks the routing table. IPv4, because Horovod's
    rendezvous client knows nothing else.

    Raises:
        JobError: The node's address has no IPv4 address, or there is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((node.address, 9))
        except OSError as error:
            raise JobError(
                f"node {node.name}: no route to {node.address} ({error}); correct its address, or set "
                "job.driver_address to the address at which the nodes reach this machine"
            ) from error
        address: str = probe.getsockname()[0]
    return address


def resolve(address: str) -> str:
    """An address or name as an IPv4 address.

    Raises:
        JobError: There is none.
    """
    try:
        return socket.gethostbyname(address)
    except OSError as error:
        raise JobError(f"job.driver_address: {address} has no IPv4 address ({error})") from error


class DriverAddresses:
    """The driver's address for each node.

    A job of local nodes stays on the loopback interface. As soon as one node is remote, local workers
    use an outside address too: it decides the interface on which Gloo listens for the others.

    Args:
        nodes: The nodes at the start of the job.
        fixed: `job.driver_address`.

    Raises:
        JobError: There is no way to a node.
    """

    def __init__(self, nodes: tuple[NodeConfig, ...], fixed: str | None) -> None:
        self._fixed = resolve(fixed) if fixed else None
        remote = next((node for node in nodes if node.launcher == "ssh"), None)
        self._for_local = self._fixed or (address_towards(remote) if remote else LOOPBACK)

    def towards(self, node: NodeConfig) -> str:
        """The address for one node.

        Raises:
            JobError: There is no way to it, or it is remote while the job lives on the loopback.
        """
        if node.launcher == "local":
            return self._for_local
        if self._for_local == LOOPBACK:
            raise JobError(
                f"node {node.name}: is remote, but the job was started with local nodes only, which "
                "it could not reach; set job.driver_address and start again"
            )
        return self._fixed or address_towards(node)
