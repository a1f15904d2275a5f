"""The life of an agent: announce, serve, follow the network's changes, say good-bye."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from hetero_hvd.agent.driver_file import DriverFile
from hetero_hvd.agent.figures import own_figures
from hetero_hvd.agent.hub_sender import HubTarget, sending
from hetero_hvd.agent.interruptions import Interruptions, MetadataService
from hetero_hvd.agent.one_agent import only_agent
from hetero_hvd.agent.pages import Pages
from hetero_hvd.agent.server import AgentServer
from hetero_hvd.agent.stay import AgentStay
from hetero_hvd.discovery.advert import LIFETIME_SECONDS, MAX_SLOTS, MAX_TEXT, Advert, sign
from hetero_hvd.discovery.machine import (
    gpu_uuids,
    own_addresses,
    own_interfaces,
    usable_names,
    visible_in,
)
from hetero_hvd.discovery.multicast import AdvertPublisher, packet_of
from hetero_hvd.discovery.unicast import AnnounceTarget, UnicastSender
from hetero_hvd.errors import DiscoveryError, job_error
from hetero_hvd.probes.kernel.boot_clock import boot_id, boot_seconds
from hetero_hvd.probes.kernel.machine_identity import machine_identity
from hetero_hvd.probes.machine.hardware import allowed_cores, gpus
from hetero_hvd.probes.sampling.local_samples import NewestSamples, Told, follow_samples
from hetero_hvd.security.token import TokenFile

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at this machine's addresses."""

REPEAT_SECONDS = LIFETIME_SECONDS / 3
GOODBYE_SECONDS = 3.0
NUM_GOODBYES, GOODBYE_PAUSE_SECONDS = 3, 0.3
LEAVE_SECONDS = 10.0
"""After the good-bye: for drivers to let our workers go in order, after the step under way."""

FIRST_ANSWER_SECONDS = 6.0
"""So long the cloud is waited for before the node is announced: an agent that was started anew on
a machine that is about to go offers nothing. A cloud that does not answer changes nothing."""

HINTS = {
    errno.EADDRINUSE: "; does another agent run here? One is enough for a machine; if it is "
    "another program, give this agent another --port",
    errno.EADDRNOTAVAIL: "; it is no address of this machine: leave --address out, or mend it",
    errno.EACCES: "; ports below 1024 are the system's: give another --port",
}
"""What to do where the port cannot be had, by the kernel's number of the reason."""

NOT_YET = "the agent has just been started and offers nothing yet"
LEAVING = "the agent is leaving, as it is ended or the cloud takes its machine away"
MAX_DEVICES = 16
FEW_ADDRESSES = 2
FEW_DEVICES = 8


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What the command line says.

    Attributes:
        key: The cluster key.
        name: Of the node.
        slots: Worker processes; None for one per GPU, at least 1; 0: it starts none.
        address: To listen on and to announce; None for all.
        port: To listen on; 0 for any.
        token: For its pages; None: it has none.
        tls: For its port; None: without.
        version: Of hetero_hvd.
        announce_to: Whom multicast does not reach.
        driver_file: Where a driver says at which addresses it is announced to; None: nowhere.
        cloud: Tells when it takes this machine away; None: nobody is asked.
        machine: Identity of what this agent has of its machine; None: it has all of it.
        visible: What CUDA_VISIBLE_DEVICES names; None: it is not set.
        must_leave: See `AgentStay`.
        until_idle_seconds: See `AgentStay`.
        hub: Where samples of this node go; None: nowhere.
    """

    key: bytes
    name: str
    slots: int | None
    address: str | None
    port: int
    token: TokenFile | None
    tls: ssl.SSLContext | None
    version: str
    announce_to: tuple[AnnounceTarget, ...] = ()
    driver_file: Path | None = None
    cloud: MetadataService | None = None
    machine: str | None = None
    visible: tuple[str, ...] | None = None
    must_leave: Callable[[], str] | None = None
    until_idle_seconds: float | None = None
    hub: HubTarget | None = None


async def serve_node(options: AgentOptions) -> str:
    """Serve until SIGTERM or SIGINT; then say good-bye, and end the workers that do not leave.

    The same while the cloud says that it takes this machine away, and when the stay is over; but
    while a machine is taken away the port stays open, so that probes find the agent alive and
    nobody starts it anew on a machine that is about to go.

    Returns:
        Why whoever lends the machine wants it back; empty: something else has ended the agent.

    Raises:
        JobError: The port cannot be had.
    """
    ending = asyncio.Event()
    stay = AgentStay(options.must_leave, options.until_idle_seconds)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with _listening(options) as node:
        if options.cloud is None:
            await _offer(options, node, stay, ending)
            return stay.reason
        interruptions = Interruptions(options.cloud)
        watch = asyncio.create_task(interruptions.watch())
        try:
            await _first_of(ending, interruptions.asked, timeout_seconds=FIRST_ANSWER_SECONDS)
            while not ending.is_set():
                await _offer(options, node, stay, ending, interruptions.expected)
                while not (ending.is_set() or interruptions.withdrawn.is_set()):
                    await _first_of(ending, interruptions.withdrawn, timeout_seconds=LOOK_SECONDS)
                    _end_if_over(stay, ending, is_idle=True)
        finally:
            watch.cancel()
    return stay.reason


class _Node(NamedTuple):
    """What an agent has for as long as it lives.

    Attributes:
        server: Its port, open.
        port: The number of that.
        num_slots: Workers that it starts.
        summary: Its devices in words.
    """

    server: AgentServer
    port: int
    num_slots: int
    summary: str


@asynccontextmanager
async def _listening(options: AgentOptions) -> AsyncIterator[_Node]:
    """Answer at the port, and look at this machine, until the end.

    Raises:
        JobError: The port cannot be had.
    """
    here, visible = gpus(), options.visible
    found = visible_in(here, visible)
    num_gpus = len(found if visible is None else usable_names(here, visible))
    num_slots = min(max(num_gpus, 1), MAX_SLOTS) if options.slots is None else options.slots
    newest = NewestSamples()
    pages = Pages(newest, options.token)
    server = AgentServer(options.key, pages, options.tls, num_slots=num_slots)
    server.refuse(NOT_YET)
    try:
        port = await server.listen(options.address, options.port)
    except OSError as error:
        place = f"port {options.port}" + (f" of {options.address}" if options.address else "")
        words = f"{place}: cannot listen: {error.strerror}{HINTS.get(error.errno or 0, '')}"
        raise job_error(words, error) from error
    logger.info("node %s listens on port %d", options.name, port)
    try:
        summary = summary_of([gpu.name for gpu in found], allowed_cores())
        machine = options.machine or machine_identity()
        with only_agent(options.key, machine, logger.warning):
            async with _sampling(options, newest):
                yield _Node(server, port, num_slots, summary)
    finally:
        await server.close()


@asynccontextmanager
async def _sampling(options: AgentOptions, newest: NewestSamples) -> AsyncIterator[None]:
    """Follow this node's samples, for who asks and for the hub."""
    async with sending(options.key, options.name, options.hub) as sender:

        def take(told: Told) -> None:
            newest.take(told)
            if sender is not None:
                sender.take(told)

        seconds = 1.0 if sender is None else sender.every
        samples = follow_samples(options.name, take, seconds=seconds, say=logger.warning)
        try:
            yield
        finally:
            await asyncio.to_thread(samples.close)


async def _offer(
    options: AgentOptions,
    node: _Node,
    stay: AgentStay,
    ending: asyncio.Event,
    *others: asyncio.Event,
) -> None:
    """Be a node of the cluster until the stay is over, which sets `ending`, or one of these is."""
    ends = (ending, *others)
    if any(end.is_set() for end in ends):
        return
    announcer = Announcer(options, node.port, node.num_slots, node.summary)
    node.server.offer()
    try:
        while not any(end.is_set() for end in ends):
            await announcer.look()
            if options.token is not None:
                options.token.look()
            await _first_of(*ends, timeout_seconds=LOOK_SECONDS)
            _end_if_over(stay, ending, is_idle=node.server.is_idle)
    finally:
        node.server.refuse(LEAVING)
        await announcer.close()
        await node.server.end_workers(LEAVE_SECONDS)


def _end_if_over(stay: AgentStay, ending: asyncio.Event, *, is_idle: bool) -> None:
    if not ending.is_set() and stay.is_over(is_idle=is_idle, now_seconds=time.monotonic()):
        ending.set()


async def _first_of(*events: asyncio.Event, timeout_seconds: float | None = None) -> None:
    """Until one is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def summary_of(gpu_names: list[str], cores: float) -> str:
    """A node's devices in a few words, as much as an advert has room for."""
    counts = Counter(gpu_names)
    words = [f"{number} x {name}" for name, number in counts.items()] or [f"{cores:g} cores"]
    return ", ".join(words)[:MAX_TEXT]


def signed_to_fit(key: bytes, advert: Advert) -> dict[str, bytes]:
    """Sign an advert; where there is no room for it, without what the least depends on.

    Which GPUs a worker has is said by itself, too: so the last that goes are some of those.
    """
    steps: tuple[dict[str, Any], ...] = (
        {},
        {"figures": {}},
        {"summary": ""},
        {"addresses": advert.addresses[:FEW_ADDRESSES]},
        {"addresses": advert.addresses[:1]},
        {"devices": advert.devices[:FEW_DEVICES]},
    )
    for less in steps:
        advert = msgspec.structs.replace(advert, **less)
        with suppress(DiscoveryError):
            return sign(key, advert)
    return sign(key, advert)


class Announcer:
    """Keeps the network informed about this node.

    Args:
        options: Of the agent.
        port: Where it listens.
        num_slots: Workers that it starts.
        summary: Its devices in words.
    """

    def __init__(self, options: AgentOptions, port: int, num_slots: int, summary: str) -> None:
        self._options = options
        self._port = port
        self._instance = secrets.token_bytes(8)
        self._started_at_seconds = boot_seconds() if boot_id() else 0.0
        self._voice = AdvertPublisher(options.name, port)
        self._senders = [UnicastSender(target) for target in options.announce_to]
        self._driver = None if options.driver_file is None else DriverFile(options.driver_file)
        self._said: tuple[str, ...] = ()
        self._network: Hashable = None
        self._said_at_seconds = 0.0
        self._summary = summary
        self._slots = num_slots

    async def look(self) -> None:
        """Announce, if the last time was long ago or the network has changed since."""
        addresses, interfaces = self._addresses(), own_interfaces()
        is_due = time.monotonic() - self._said_at_seconds >= REPEAT_SECONDS
        if addresses and (is_due or (addresses, interfaces) != self._network):
            self._network = addresses, interfaces
            await self._say(addresses, leaves=False)
        if addresses:  # at each look: nobody asks there
            await self._send(addresses, leaves=False)

    async def close(self) -> None:
        """Say good-bye, signed and as zeroconf has it."""
        addresses = self._addresses() or self._said
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(self._part_from_targets(addresses), self._part(addresses))

    async def _part(self, addresses: tuple[str, ...]) -> None:
        if self._said:
            await self._say(addresses, leaves=True)
        await self._voice.close()

    async def _part_from_targets(self, addresses: tuple[str, ...]) -> None:
        """Several times, as a packet may be lost and nobody answers; zeroconf does so by itself."""
        for number in range(NUM_GOODBYES if addresses else 0):
            if number:
                await asyncio.sleep(GOODBYE_PAUSE_SECONDS)
            await self._send(addresses, leaves=True)

    def _addresses(self) -> tuple[str, ...]:
        fixed = self._options.address
        return (fixed,) if fixed else own_addresses()

    async def _send(self, addresses: tuple[str, ...], *, leaves: bool) -> None:
        found = () if self._driver is None else await self._driver.senders()
        senders = (*self._senders, *found)
        if senders:
            advert = self._signed(addresses, leaves=leaves)
            packet = packet_of(self._options.name, self._port, advert)
            await asyncio.gather(*(sender.send(packet) for sender in senders))

    async def _say(self, addresses: tuple[str, ...], *, leaves: bool) -> None:
        try:
            await self._voice.say(
                addresses,
                lambda: self._signed(addresses, leaves=leaves),
                network=self._network,
            )
        except OSError as error:  # the network is changing under us: the next look tries again
            self._network = None
            logger.warning("cannot announce: %s", error)
            return
        if addresses != self._said:
            logger.info("announced at %s", ", ".join(addresses))
        self._said = addresses
        self._said_at_seconds = time.monotonic()

    def _exporter(self) -> Literal["", "http", "https"]:
        if self._options.token is None:
            return ""
        return "http" if self._options.tls is None else "https"

    def _signed(self, addresses: tuple[str, ...], *, leaves: bool) -> dict[str, bytes]:
        advert = Advert(
            name=self._options.name,
            machine=self._options.machine or machine_identity(),
            instance=self._instance,
            addresses=addresses,
            port=self._port,
            slots=self._slots,
            devices=gpu_uuids(self._options.visible)[:MAX_DEVICES],
            summary=self._summary,
            figures=own_figures(self._options.visible),
            version=self._options.version,
            issued_at_seconds=time.time(),
            nonce=secrets.token_bytes(16),
            leaves=leaves,
            exporter=self._exporter(),
            started_at_seconds=self._started_at_seconds,
        )
        return signed_to_fit(self._options.key, advert)
