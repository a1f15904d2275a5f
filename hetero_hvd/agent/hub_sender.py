"""Streams this node's samples to the hub: what the spool holds, until the hub has it.

A hub that does not answer, is full or is started anew costs nothing but time: whatever was not
acknowledged is sent again, and the hub drops what it has already.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.agent.spool import DEFAULT_MAX_BYTES, SampleSpool, Spooled
from hetero_hvd.core.backoff import doubled, jittered
from hetero_hvd.core.clock import ClockOffset, best_of_newest, offset_of
from hetero_hvd.discovery import hub_link as link
from hetero_hvd.discovery.hub_finder import HubFinder
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import ChannelError, UserError, job_error
from hetero_hvd.messages import NodeEquipped, NodeSampled
from hetero_hvd.probes.kernel.boot_clock import boot_id, boot_seconds
from hetero_hvd.security.cluster_tls import ClientTls, for_hubs_client
from hetero_hvd.security.web_socket import ClientConnection, WebSocketException, connected
from hetero_hvd.version import __version__

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
ANSWER_SECONDS = 30.0
"""For the hub to store a batch; then the connection is made anew."""

GOODBYE_SECONDS = 1.0
"""For the hub to end the link after it; one of an earlier version does not."""

PING_SECONDS = 10.0
MAX_BATCH_SAMPLES, MAX_BATCH_BYTES = 256, 2**17
NUM_OFFSETS = 16
"""Of the newest exchanges that agree the fastest tells how far the clocks are apart."""

FindHub = Callable[[str], Awaitable[AnnounceTarget | None]]
MAX_SAMPLE_AGE_SECONDS = 2.0
"""A sample is found within this; an older time of it says that a wall clock was set."""


class HubTarget(NamedTuple):
    """Where samples go.

    Attributes:
        address: Of the hub; None: it announces itself.
        spool: Folder in which they wait.
        max_bytes: Of that.
    """

    address: AnnounceTarget | None
    spool: Path
    max_bytes: int = DEFAULT_MAX_BYTES


@asynccontextmanager
async def sending(
    key: bytes, node: str, target: HubTarget | None
) -> AsyncIterator[HubSender | None]:
    """Stream to a hub until the end; gives what takes the samples, if there is a target.

    Raises:
        UserError: The spool cannot be had.
    """
    if target is None:
        yield None
        return

    finder = HubFinder(key, time.time)

    async def find(preferred: str) -> AnnounceTarget | None:
        return target.address or (await finder.find(preferred)).target

    try:
        sender = HubSender(key, node, find, target.spool, max_bytes=target.max_bytes)
    except OSError as error:
        if error.errno is None:
            raise UserError(f"--spool: {error}; give it another folder") from error
        words = f"--spool: {target.spool}: cannot be used: {error.strerror}"
        raise job_error(words, error) from error
    task = asyncio.create_task(sender.send())
    try:
        yield sender
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        sender.close()
        await finder.close()


class HubSender:
    """Takes samples in from any thread; sends them in the loop's.

    Args:
        key: The cluster key.
        node: Name of this node.
        find_hub: Given the identity of the hub that was used before, gives a hub's address; None:
            none is known yet.
        folder: Of the spool.
        max_bytes: Of the spool.

    Attributes:
        num_sent: Samples that the hub has acknowledged.
        every_seconds: Between two samples, as the hub wants it.

    Raises:
        OSError: The spool cannot be had.
    """

    def __init__(
        self,
        key: bytes,
        node: str,
        find_hub: FindHub,
        folder: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._tls: ClientTls = for_hubs_client(key)
        self._node = node
        self._find_hub = find_hub
        self.spool = SampleSpool(
            folder, boot=boot_id(), wall_offset=_wall_offset, max_bytes=max_bytes
        )
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._offsets: deque[ClockOffset] = deque(maxlen=NUM_OFFSETS)
        self._trouble = ""
        self.num_sent = 0
        self.every_seconds = 1.0

    def take(self, told: NodeSampled | NodeEquipped) -> None:
        """Take a sample in; never blocks for long, never raises."""
        if not isinstance(told, NodeSampled):
            return
        age_seconds = time.time() - told.at_unix_seconds
        is_plausible = 0.0 <= age_seconds <= MAX_SAMPLE_AGE_SECONDS
        at_seconds = boot_seconds() - (age_seconds if is_plausible else 0.0)
        self.spool.append(at_seconds, msgspec.msgpack.encode(told))
        self._loop.call_soon_threadsafe(self._news.set)

    def every(self) -> float:
        """Seconds between two samples, as the hub wants it; any thread may ask."""
        return self.every_seconds

    async def send(self) -> None:
        """Send until cancelled."""
        num_failures = 0
        while True:
            num_before = self.num_sent
            trouble = await self._try()
            num_failures = 0 if self.num_sent > num_before else num_failures
            num_failures += 1
            longest = doubled(FIRST_RETRY_SECONDS, num_failures, MAX_RETRY_SECONDS)
            if trouble != self._trouble:
                self._trouble = trouble
                logger.warning("no hub takes samples: %s; they wait on this node's disk", trouble)
            chance = random.random()  # noqa: S311 - no secret
            await asyncio.sleep(jittered(FIRST_RETRY_SECONDS, longest, chance))

    def close(self) -> None:
        """Leave what was not sent to the next agent."""
        self.spool.close()
        if self._trouble:
            logger.warning(
                "no hub has the newest samples: they wait on this node's disk for the next agent "
                "with this --spool"
            )

    async def _try(self) -> str:
        """One connection, as long as it lasts; gives why it ended."""
        hub: AnnounceTarget | None = None
        try:
            hub = await self._find_hub(self.spool.hub)
            if hub is None:
                return "none announces itself"
            async with connected(
                f"wss://{hub}{link.PATH}",
                self._tls,
                max_frame_bytes=link.MAX_FRAME_BYTES,
                ping_seconds=PING_SECONDS,
            ) as socket:
                await self._greet(socket)
                if self._trouble or not self.num_sent:
                    logger.info("hub at %s takes samples", hub)
                self._trouble = ""
                try:
                    while True:
                        await self._send_next(socket)
                except asyncio.CancelledError:
                    await self._part(socket)
                    raise
        except (OSError, WebSocketException, ChannelError, TimeoutError) as error:
            return f"{hub or 'network'}: {str(error) or 'no answer in time'}"

    async def _part(self, socket: ClientConnection) -> None:
        """Say good-bye, so that nobody is warned of this node's silence; the hub ends the link."""
        batch = msgspec.structs.replace(self._batch(None, [], boot_seconds()), leaves=True)
        with suppress(OSError, WebSocketException, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await socket.send(link.encode(batch))
                while True:
                    await socket.recv()

    async def _greet(self, socket: ClientConnection) -> None:
        asked_at = boot_seconds()
        hello = link.Hello(
            protocol=link.PROTOCOL,
            oldest_protocol=link.OLDEST_PROTOCOL,
            version=__version__,
            node=self._node,
            asked_at_seconds=asked_at,
        )
        answer = await self._ask(socket, hello)
        if not isinstance(answer, link.Welcome):
            raise ChannelError("the hub says something else than welcome")
        self._offsets.clear()  # the hub may be another one
        known = self.spool.hub
        if known not in ("", answer.hub):
            logger.warning(
                "hub %s takes samples from now on, and no more hub %s, which has those before",
                answer.hub,
                known,
            )
        self.spool.hub = answer.hub
        self._heard(answer, asked_at)

    async def _send_next(self, socket: ClientConnection) -> None:
        """Send what waits, or wait for it."""
        self._news.clear()
        spooled = self.spool.oldest(MAX_BATCH_SAMPLES, MAX_BATCH_BYTES)
        dropped = self.spool.dropped()
        if spooled is None and not dropped:
            await self._news.wait()
            return
        asked_at = boot_seconds()
        batch = self._batch(spooled, dropped, asked_at)
        answer = await self._ask(socket, batch)
        if not isinstance(answer, link.Stored):
            raise ChannelError("the hub says something else than what it has stored")
        self._heard(answer, asked_at)
        self.spool.acknowledge(answer.stream, answer.next_sequence, dropped)
        self.num_sent += len(batch.samples)

    def _batch(
        self, spooled: Spooled | None, dropped: list[link.Dropped], asked_at: float
    ) -> link.SampleBatch:
        offset = best_of_newest(self._offsets)
        seconds, uncertainty = offset.seconds, offset.uncertainty_seconds
        if spooled is not None and spooled.wall_offset_seconds is not None:
            # Its clock ended with that boot: the wall clock of its own time is all there is.
            seconds, uncertainty = spooled.wall_offset_seconds, math.nan
        samples = [] if spooled is None else spooled.samples
        return link.SampleBatch(
            stream=self.spool.stream if spooled is None else spooled.stream,
            first=samples[0].sequence if samples else 1,
            times_seconds=[each.at_seconds for each in samples],
            samples=[each.sample for each in samples],
            offset_seconds=seconds,
            uncertainty_seconds=uncertainty,
            dropped=dropped,
            asked_at_seconds=asked_at,
        )

    async def _ask(self, socket: ClientConnection, frame: link.HubFrame) -> link.HubFrame:
        """Say something; gives the answer.

        Raises:
            ChannelError: It is refused, or not understood.
            TimeoutError: There is none.
        """
        async with asyncio.timeout(ANSWER_SECONDS):
            await socket.send(link.encode(frame))
            answer = link.decode(await socket.recv())
        if isinstance(answer, link.HubRefusal):
            raise ChannelError(answer.words)
        return answer

    def _heard(self, answer: link.Welcome | link.Stored, asked_at: float) -> None:
        self._offsets.append(
            offset_of(
                asked_at=asked_at,
                received_at=answer.received_at_seconds,
                replied_at=answer.replied_at_seconds,
                heard_at=boot_seconds(),
            )
        )
        self.every_seconds = answer.every_seconds


def _wall_offset() -> float:
    """What the wall clock shows more than the clock since boot, now."""
    return time.time() - boot_seconds()
