"""Which of the driver's own addresses a node should use."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple, Protocol

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.errors import JobError, job_error

LOOPBACK = "127.0.0.1"
MULTICAST = ("224.0.0.251", 5353)
"""Where zeroconf talks (RFC 6762)."""


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
            raise job_error(
                f"node {node.name}: no route to {node.address} ({error}); correct its address, "
                "or set job.driver_address to the address at which the nodes reach this machine",
                error,
            ) from error
        address: str = probe.getsockname()[0]
    return address


def outside() -> str:
    """This machine's IPv4 address in the network where nodes announce themselves.

    Raises:
        JobError: There is no such network.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(MULTICAST)
        except OSError as error:
            raise job_error(
                f"job.discover: no route to other machines ({error}); set job.driver_address",
                error,
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
    except UnicodeError as error:
        raise JobError(f"job.driver_address: {address} is no host name ({error})") from error
    except OSError as error:
        words = f"job.driver_address: {address} has no IPv4 address ({error})"
        raise job_error(words, error) from error


class DriverAddresses:
    """The driver's address for each node.

    A job of local nodes stays on the loopback interface. As soon as one node is remote, local
    workers use an outside address too: it decides on which interface Gloo listens for the others.

    Args:
        nodes: The nodes at the start of the job.
        fixed: `job.driver_address`.

        expects_others: Remote nodes may join a job of local ones.

    Raises:
        JobError: There is no way to a node, or, if others are expected, out of this machine.
    """

    def __init__(
        self, nodes: tuple[NodeConfig, ...], fixed: str | None, *, expects_others: bool = False
    ) -> None:
        self._fixed = resolve(fixed) if fixed else None
        remote = next((node for node in nodes if not node.is_local), None)
        self._for_local = self._fixed or (
            address_towards(remote) if remote else outside() if expects_others else LOOPBACK
        )

    @classmethod
    def of(cls, config: ClusterConfig) -> DriverAddresses:
        """Those of a job."""
        job = config.job
        return cls(config.nodes, job.driver_address, expects_others=job.discover)

    def towards(self, node: NodeConfig) -> str:
        """The address for one node.

        Raises:
            JobError: There is no way to it, or it is remote while the job lives on the loopback.
        """
        if node.is_local:
            return self._for_local
        address = self._fixed or address_towards(node)
        if self._for_local == LOOPBACK != address:
            raise JobError(
                f"node {node.name}: is remote, but the job was started with local nodes only, "
                "which it could not reach; set job.driver_address and start again"
            )
        return address


class Listener(Protocol):
    """A server that can listen on several addresses."""

    async def listen(self, address: str) -> int:
        """Accept connections on an address; returns the port."""


class Endpoint(NamedTuple):
    """Where a node reaches the driver."""

    address: str
    channel_port: int


class Endpoints:
    """Where the driver listens for channels: at each address that some node needs, at no other.

    Args:
        addresses: The driver's address for each node.
        channels: The server of the workers' channels.
    """

    def __init__(self, addresses: DriverAddresses, channels: Listener) -> None:
        self._addresses = addresses
        self._channels = channels
        self._open: dict[str, Endpoint] = {}
        self._lock = asyncio.Lock()

    async def towards(self, node: NodeConfig) -> Endpoint:
        """The endpoint for a node, opened if it is the first for that address.

        Raises:
            JobError: There is no way to the node, or the address is not ours.
        """
        address = self._addresses.towards(node)
        async with self._lock:
            if address not in self._open:
                try:
                    port = await self._channels.listen(address)
                except OSError as error:
                    words = f"the driver cannot listen on {address}: {error}"
                    raise job_error(words, error) from error
                self._open[address] = Endpoint(address, port)
        return self._open[address]
