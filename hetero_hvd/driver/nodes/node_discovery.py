"""nodes.yaml and the nodes that announce themselves, merged into one view."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.job import JobConfig
from hetero_hvd.config.launchers import AGENT
from hetero_hvd.config.paths import own_path
from hetero_hvd.discovery.advert import Advert
from hetero_hvd.discovery.hub_client import HubOrders
from hetero_hvd.discovery.receiver import AdvertReceiver
from hetero_hvd.discovery.registry import NodeRegistry
from hetero_hvd.discovery.words import in_words
from hetero_hvd.driver.nodes.host_resolver import HostResolver
from hetero_hvd.driver.nodes.hub_adverts import HubAdverts
from hetero_hvd.errors import JobError
from hetero_hvd.probes.kernel.machine_identity import machine_identity
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.security.cluster_tls import DRIVER_NAME, for_driver_with

logger = logging.getLogger(__name__)

NO_IPV4 = (
    "it announces no IPv4 address, and Horovod knows nothing else: give its agent one, or an "
    "--address that is one"
)

LOOKS = 3
"""A second each: zeroconf lets who has just announced himself wait for so long."""


async def scan(config: ClusterConfig) -> tuple[ClusterConfig, dict[str, Advert]]:
    """The nodes of nodes.yaml and those that announce themselves now; takes 3 s.

    Returns:
        All nodes, and what the announced ones of them say, by name.

    Raises:
        UserError: The key cannot be read, or there is no network.
    """
    found = await _listening(replace(config.job, discover=True))
    try:
        found.merge(config)  # begins to look up host names
        for _ in range(LOOKS):
            found.ask()
            await asyncio.sleep(1)
            found.listen()
        cluster = found.merge(config)
        listed = {node.name for node in config.nodes}
        names = {node.name for node in cluster.nodes} - listed
        return cluster, {a.name: a for a in found.present() if a.name in names}
    finally:
        await found.close()


async def _listening(job: JobConfig) -> NodeDiscovery:
    """For a look at the nodes; where a job that runs here has the port, without it."""
    found = NodeDiscovery(job, logger.warning, greets=False)
    try:
        await found.open()
    except JobError as error:
        if not job.listen:
            raise
        logger.warning("%s: nodes that announce themselves there are not shown", error)
        found = NodeDiscovery(replace(job, listen=0), logger.warning, greets=False)
        await found.open()
    return found


def check_tls_file(job: JobConfig) -> None:
    """Find out now whether agents that announce themselves later can be reached with it.

    Raises:
        UserError: They cannot.
    """
    if job.discover and job.tls_file is not None:
        for_driver_with(own_path(job.tls_file, "job.tls_file"), DRIVER_NAME)


class NodeDiscovery:
    """The nodes that announce themselves. Used in the loop's thread only.

    Args:
        job: Of the job at its start: whether to listen, the key, and who is welcome.
        say: Tells people of a node that is new, and of what is not used.
        greets: Whether a node that is new is told.

    Raises:
        UserError: The key cannot be read.
    """

    def __init__(
        self, job: JobConfig, say: Callable[[str], None] = logger.info, *, greets: bool = True
    ) -> None:
        self._say = say
        self._greets = greets
        self._key_file = job.cluster_key_file or ""
        self._tls_file = job.tls_file
        self._allowed = set(job.allow.split(",")) if job.allow else None
        self._receiver: AdvertReceiver | None = None
        self._hub: HubAdverts | None = None
        if job.discover:
            key = read_key(own_path(self._key_file, "job.cluster_key_file"))
            self._receiver = AdvertReceiver(key, job.listen, say)
            self._hub = HubAdverts(HubOrders(job.cluster_key_file, job.hub), say)
        self._roster = NodeRegistry()
        self._own_machine = machine_identity()
        self._names = HostResolver()
        self._added = set[str]()
        self._machines: dict[str, str] = {}

    @property
    def ignored(self) -> dict[str, int]:
        """How many adverts were not used, by reason."""
        counts = {"dropped": 0} if self._receiver is None else self._receiver.ignored
        return counts | {"conflict": self._roster.conflicts}

    async def open(self) -> None:
        """Listen, and ask the hub for those that announce themselves there.

        Raises:
            JobError: There is no network to listen on, or the port cannot be had.
        """
        if self._receiver is not None and self._hub is not None:
            await self._receiver.open(port_setting="job.listen", setting="job.discover", user="job")
            self._hub.begin()

    async def close(self) -> None:
        """Listen no more."""
        self._names.close()
        if self._hub is not None:
            await self._hub.close()
        if self._receiver is not None:
            await self._receiver.close()

    def ask(self) -> None:
        """Ask all agents to announce themselves; `listen` does so every 5 s."""
        if self._receiver is not None:
            self._receiver.ask()

    def listen(self) -> bool:
        """Check what came since the last tick, directly or through the hub.

        Returns:
            Whether there is news: an advert that is believed.
        """
        if self._receiver is None or self._hub is None:
            return False
        has_news = False
        for sender, _, advert in self._receiver.take(self._hub.take()):
            has_news = True
            if why := self._roster.heard(advert, now_seconds=time.monotonic()):
                self._receiver.complain(sender, why)
        return has_news

    def meet(self, machines: Mapping[str, str]) -> None:
        """Learn on which machines the nodes are: name to identity, of those that have told."""
        self._machines.update(machines)

    def merge(self, config: ClusterConfig) -> ClusterConfig:
        """The nodes of nodes.yaml, completed, and the announced ones that it does not have."""
        listed = tuple(self._with_key(node) for node in config.nodes)
        if self._receiver is None:
            return config if listed == config.nodes else replace(config, nodes=listed)
        names = {node.name for node in listed}
        are_known = self._names.look_up(node.address for node in listed)
        addresses = {a for node in listed for a in self._names.addresses(node.address)}
        present = self.present()
        machines = {self._machines[name] for name in names & self._machines.keys()}
        if any(node.is_local for node in listed):
            machines.add(self._own_machine)
        added = [
            node
            for advert in present
            if advert.name not in names and addresses.isdisjoint(advert.addresses)
            if advert.machine not in machines and advert.slots
            if self._allowed is None or advert.name in self._allowed
            if are_known or advert.name in self._added
            if (node := self._node(advert)) is not None
        ]
        for advert in present if self._greets else ():
            if advert.name in {node.name for node in added} - self._added:
                self._greet(advert)
        self._added = {node.name for node in added}
        return replace(config, nodes=(*listed, *added))

    def present(self) -> tuple[Advert, ...]:
        """The newest adverts of those that are there, by name; also of those that are not used."""
        return self._roster.present(now_seconds=time.monotonic())

    def exporters(self, config: ClusterConfig) -> dict[str, str]:
        """Where Prometheus finds the nodes' own metrics: name to `http[s]://ADDRESS:PORT`."""
        names = {a: n.name for n in config.nodes for a in self._names.addresses(n.address)}
        found = {}
        for advert in self.present():
            if advert.exporter:
                name = next((names[a] for a in advert.addresses if a in names), advert.name)
                found[name] = advert.exporter_url
        return found

    def _with_key(self, node: NodeConfig) -> NodeConfig:
        if not node.kind.uses_cluster_key:
            return node
        return replace(
            node,
            identity_file=node.identity_file or self._key_file,
            tls_file=node.tls_file or self._tls_file,
        )

    def _node(self, advert: Advert) -> NodeConfig | None:
        """How to start its workers; None if Horovod, which knows IPv4 only, cannot reach it."""
        for address in advert.addresses:
            if ipaddress.ip_address(address).version == 4:  # noqa: PLR2004 - the protocol's name
                return NodeConfig(
                    name=advert.name,
                    address=address,
                    port=advert.port,
                    slots=advert.slots,
                    launcher=AGENT.name,
                    identity_file=self._key_file,
                    tls_file=self._tls_file,
                )
        if self._receiver is not None:
            self._receiver.say_once(f"{advert.name} is not used: {NO_IPV4}")
        return None

    def _greet(self, advert: Advert) -> None:
        self._say(f"{advert.name} announces itself: {in_words(advert)}")
