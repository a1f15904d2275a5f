"""Announces the hub in the network, signed, so that agents and commands find it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Hashable
from contextlib import suppress

from hetero_hvd.discovery.advert import LIFETIME_SECONDS, OF_HUB, Advert, sign
from hetero_hvd.discovery.machine import own_addresses, own_interfaces
from hetero_hvd.discovery.multicast import AdvertPublisher
from hetero_hvd.version import __version__

logger = logging.getLogger(__name__)

REPEAT_SECONDS = LIFETIME_SECONDS / 3
FEW_ADDRESSES = 4


class HubAnnouncer:
    """Keeps the network informed.

    Args:
        key: The cluster key.
        identity: Of the hub's store.
        address: Where it listens; None: everywhere.
        port: Where it listens.
    """

    def __init__(self, key: bytes, identity: str, address: str | None, port: int) -> None:
        self._key = key
        self._identity = identity
        self._address = address
        self._port = port
        self._instance = secrets.token_bytes(8)
        self._publisher = AdvertPublisher(f"hub-{identity}", port, OF_HUB)
        self._network: Hashable = None
        self._said_at_seconds = -REPEAT_SECONDS

    async def look(self) -> None:
        """Announce, if the last time was long ago or the network has changed since."""
        addresses = self._addresses()
        network = addresses, own_interfaces()
        is_due = time.monotonic() - self._said_at_seconds >= REPEAT_SECONDS
        if addresses and (is_due or network != self._network):
            self._network = network
            await self._say(addresses, leaves=False)

    async def close(self) -> None:
        """Say good-bye."""
        if self._network is not None and (addresses := self._addresses()):
            await self._say(addresses, leaves=True)
        with suppress(OSError):
            await self._publisher.close()

    def _addresses(self) -> tuple[str, ...]:
        return (self._address,) if self._address else own_addresses()[:FEW_ADDRESSES]

    async def _say(self, addresses: tuple[str, ...], *, leaves: bool) -> None:
        def properties() -> dict[str, bytes]:
            return sign(self._key, self._advert(addresses, leaves=leaves), OF_HUB)

        try:
            await self._publisher.say(addresses, properties, network=self._network)
            self._said_at_seconds = time.monotonic()
        except OSError as error:  # the network is changing under us: the next look tries again
            self._network = None
            logger.warning("cannot announce the hub: %s", error)

    def _advert(self, addresses: tuple[str, ...], *, leaves: bool) -> Advert:
        return Advert(
            name="hub",
            machine=self._identity,
            instance=self._instance,
            addresses=addresses,
            port=self._port,
            slots=0,
            version=__version__,
            issued_at_seconds=time.time(),
            nonce=secrets.token_bytes(16),
            leaves=leaves,
        )
