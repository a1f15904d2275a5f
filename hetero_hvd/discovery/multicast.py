"""The door to zeroconf: announce a node, hear those of others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zeroconf import (  # type: ignore[attr-defined]  # public, but missing in its __all__
    DNSOutgoing,
    DNSQuestion,
    DNSText,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

SERVICE = "_hetero-hvd._tcp.local."
MAX_QUEUED = 512
_FLAGS_QUERY, _TYPE_PTR, _CLASS_IN = 0, 12, 1


class Ear(RecordUpdateListener):
    """Collects the raw TXT records of our service; what is too much is dropped and counted.

    The records are never resolved: all that matters is inside, signed, so that a forged advert
    makes us send nothing. Zeroconf's own good-bye is not signed, hence not listened to.

    Attributes:
        dropped: Records that came while the queue was full.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: deque[tuple[str, bytes]] = deque()
        self._zeroconf: AsyncZeroconf | None = None

    async def open(self) -> None:
        """Listen on all interfaces, and ask who is there.

        Raises:
            OSError: There is no network to listen on.
        """
        self._zeroconf = AsyncZeroconf()
        zeroconf = self._zeroconf.zeroconf
        await zeroconf.async_wait_for_start()
        zeroconf.async_add_listener(self, None)
        self.ask()

    def ask(self) -> None:
        """Ask all agents to announce themselves."""
        if self._zeroconf is not None:
            question = DNSOutgoing(_FLAGS_QUERY)
            question.add_question(DNSQuestion(SERVICE, _TYPE_PTR, _CLASS_IN))
            self._zeroconf.zeroconf.async_send(question)

    async def close(self) -> None:
        """Listen no more."""
        if self._zeroconf is not None:
            await self._zeroconf.async_close()

    def async_update_records(
        self,
        zc: Zeroconf,  # noqa: ARG002
        now: float,  # noqa: ARG002
        records: list[RecordUpdate],
    ) -> None:
        """Called by zeroconf, in the loop: some records came."""
        for update in records:
            record = update.new
            if isinstance(record, DNSText) and record.name.lower().endswith(SERVICE):
                if len(self._queue) < MAX_QUEUED:
                    self._queue.append((record.name, record.text))
                else:
                    self.dropped += 1

    def async_update_records_complete(self) -> None:
        """Called by zeroconf after each packet."""

    def take(self, limit: int) -> list[tuple[str, bytes]]:
        """The oldest records, at most so many: (name that the sender claims, raw text)."""
        return [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]


class Voice:
    """Announces one node, as often as told.

    Args:
        name: Of the node.
        port: Where its agent listens.
    """

    def __init__(self, name: str, port: int) -> None:
        self._instance = f"{name.replace('.', '-')}.{SERVICE}"
        self._host = f"{name}.local."
        self._port = port
        self._zeroconf: AsyncZeroconf | None = None
        self._addresses: tuple[str, ...] = ()

    async def say(
        self, addresses: tuple[str, ...], properties: Callable[[], dict[str, bytes]]
    ) -> None:
        """Announce anew; other addresses than last time mean new sockets too.

        Raises:
            OSError: There is no network.
        """
        if self._zeroconf is not None and addresses != self._addresses:
            await self.close()
        info = ServiceInfo(
            SERVICE,
            self._instance,
            port=self._port,
            properties=dict(properties()),
            server=self._host,
            parsed_addresses=list(addresses),
        )
        if self._zeroconf is None:
            self._zeroconf, self._addresses = AsyncZeroconf(), addresses
            sending = await self._zeroconf.async_register_service(info, cooperating_responders=True)
        else:
            sending = await self._zeroconf.async_update_service(info)
        await sending

    async def close(self) -> None:
        """Say zeroconf's good-bye and announce no more."""
        if self._zeroconf is not None:
            zeroconf, self._zeroconf = self._zeroconf, None
            await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()
