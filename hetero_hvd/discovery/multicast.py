"""The door to zeroconf: announce a node, read and write the packets."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from zeroconf import (  # type: ignore[attr-defined]  # public, but missing in its __all__
    DNSIncoming,
    DNSOutgoing,
    DNSQuestion,
    DNSText,
    ServiceInfo,
)
from zeroconf.asyncio import AsyncZeroconf

from hetero_hvd.discovery.advert import OF_NODE, AdvertKind
from hetero_hvd.messages.identity import shortened

GROUP, GROUP6, PORT = "224.0.0.251", "ff02::fb", 5353
MAX_ADVERTS = 4
"""Of one packet; an agent sends one."""

_FLAGS_QUERY, _FLAGS_ANSWER = 0, 0x8400
_TYPE_PTR, _TYPE_TXT, _CLASS_IN = 12, 16, 1
_LIFETIME = 120  # seconds that zeroconf may keep a record; what counts is signed, inside
_MAX_LABEL = 63  # of DNS: what is between two dots of a name


def question(kind: AdvertKind = OF_NODE) -> bytes:
    """A packet that asks all of a kind to announce themselves."""
    packet = DNSOutgoing(_FLAGS_QUERY)
    packet.add_question(DNSQuestion(kind.service, _TYPE_PTR, _CLASS_IN))
    return packet.packets()[0]


def adverts_in(packet: bytes, kind: AdvertKind = OF_NODE) -> list[bytes]:
    """The raw TXT records of a kind in a packet, at most 4; none if it is malformed."""
    label = kind.service.partition(".")[0].encode()
    if bytes([len(label)]) + label not in packet:  # cheap: most of it is not for us
        return []
    message = DNSIncoming(packet)
    records = message.answers() if message.valid and message.is_response() else []
    texts = [
        record.text
        for record in records
        if isinstance(record, DNSText) and record.name.lower().endswith(f".{kind.service}")
    ]
    return texts[:MAX_ADVERTS]


def packet_of(
    name: str, port: int, properties: dict[str, bytes], kind: AdvertKind = OF_NODE
) -> bytes:
    """An announcement as a packet, for those whom multicast does not reach.

    Args:
        name: Of the node.
        port: Where its agent listens.
        properties: The signed advert.
        kind: What it is of.
    """
    instance = _instance_of(name, kind)
    text = ServiceInfo(kind.service, instance, port=port, properties=dict(properties)).text or b""
    packet = DNSOutgoing(_FLAGS_ANSWER)
    packet.add_answer_at_time(DNSText(instance, _TYPE_TXT, _CLASS_IN, _LIFETIME, text), 0)
    return packet.packets()[0]


def _label_of(name: str) -> str:
    """A node's name as DNS can say it; what counts is in the properties."""
    return shortened(name.replace(".", "-"), _MAX_LABEL)


def _instance_of(name: str, kind: AdvertKind) -> str:
    return f"{_label_of(name)}.{kind.service}"


class AdvertPublisher:
    """Announces one node, as often as told.

    Args:
        name: Of the node.
        port: Where its agent listens.
        kind: What is announced.
    """

    def __init__(self, name: str, port: int, kind: AdvertKind = OF_NODE) -> None:
        self._kind = kind
        self._instance = _instance_of(name, kind)
        self._host = f"{_label_of(name)}.local."
        self._port = port
        self._zeroconf: AsyncZeroconf | None = None
        self._network: Hashable = None

    async def say(
        self,
        addresses: tuple[str, ...],
        properties: Callable[[], dict[str, bytes]],
        *,
        network: Hashable,
    ) -> None:
        """Announce anew.

        Args:
            addresses: Of the node, for zeroconf; what counts is in the properties.
            properties: Makes them.
            network: Another one than last time means new sockets too.

        Raises:
            OSError: There is no network.
        """
        if self._zeroconf is not None and network != self._network:
            await self.close()
        info = ServiceInfo(
            self._kind.service,
            self._instance,
            port=self._port,
            properties=dict(properties()),
            server=self._host,
            parsed_addresses=list(addresses),
        )
        if self._zeroconf is None:
            self._zeroconf = AsyncZeroconf()
            self._network = network
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
