"""Orders find a hub that announces itself: at each of its addresses, and wherever it is next."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import pytest

from hetero_hvd.discovery import hub_client, hub_finder
from hetero_hvd.discovery.advert import OF_HUB, sign
from hetero_hvd.discovery.hub_client import AUTO, HubOrders
from hetero_hvd.errors import JobError, TryAgainError
from tests.discovery.test_advert import KEY, as_text, make

ADDRESSES = ("10.0.0.1", "10.0.0.2", "fd00::1")
REFUSAL = JobError("'adverts' is no command of this hub")


@pytest.fixture
def key_file(tmp_path):
    """With the key."""
    path = tmp_path / "key"
    path.write_text(KEY.hex())
    path.chmod(0o600)
    return path


class Ear:
    """Hears the same hub each time that it listens."""

    def __init__(self, **_):
        self._heard = []
        self._at_seconds = time.time()

    async def open(self):
        """Zeroconf says again what it has said."""
        advert = make(addresses=ADDRESSES, slots=0, issued_at_seconds=self._at_seconds)
        self._heard = [("10.0.0.1", as_text(sign(KEY, advert, OF_HUB)))]

    async def close(self):
        """Hear no more."""

    def take(self):
        """What came."""
        heard, self._heard = self._heard, []
        return heard


WHERE_NEXT = {
    "it does not answer": (TryAgainError("no hub answers there"), False, ADDRESSES),
    "it has another key": (JobError("does not hold this key"), False, ADDRESSES),
    "it ends": (TryAgainError("no hub answers there"), True, ADDRESSES),
    "it refuses an order": (REFUSAL, True, ADDRESSES[:1] * 3),
    "all is well": (None, True, ADDRESSES[:1] * 3),
}


@pytest.mark.parametrize("case", WHERE_NEXT)
def test_all_addresses_of_a_hub_are_tried_in_turn(key_file, monkeypatch, case):
    """Until there is the hub; a hub that only refuses an order is not looked for again."""
    error, is_greeted, addresses = WHERE_NEXT[case]
    tried = []

    @asynccontextmanager
    async def conversation(_key, hub, **_):
        tried.append(hub.host)
        if error is not None and not is_greeted:
            raise error
        yield

    monkeypatch.setattr(hub_client, "conversation", conversation)
    monkeypatch.setattr(hub_finder, "AdvertListener", Ear)

    async def act():
        orders = HubOrders(key_file, AUTO)
        for _ in ADDRESSES:
            with suppress(JobError, TryAgainError):
                async with orders.conversation():
                    if error is not None:
                        raise error

    asyncio.run(act())
    assert tuple(tried) == addresses
