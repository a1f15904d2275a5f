"""The ear of multicast, on this machine's own interfaces."""

from __future__ import annotations

import asyncio

import pytest

from hetero_hvd.discovery import listener
from hetero_hvd.discovery.listener import AdvertListener
from hetero_hvd.discovery.multicast import question


def test_what_was_closed_hears_again_when_it_is_opened():
    """Its sockets are new ones, of no group yet: it hears its own question as at first."""

    async def act():
        ear, packets = AdvertListener(), asyncio.Queue()
        ear.heard = lambda _, packet: packets.put_nowait(packet)
        for _ in range(2):
            try:
                await ear.open()
            except OSError as error:
                pytest.skip(str(error))
            async with asyncio.timeout(10):
                while await packets.get() != question():
                    continue
            await ear.close()
            while not packets.empty():
                packets.get_nowait()

    asyncio.run(act())


def test_a_question_that_finds_no_descriptor_free_ends_nothing(monkeypatch):
    """It is asked again at the next occasion; one that was never heard anywhere is not opened."""

    def refuse():
        raise OSError(24, "Too many open files")

    async def act():
        ear = AdvertListener()
        try:
            await ear.open()
        except OSError as error:
            pytest.skip(str(error))
        monkeypatch.setattr(listener, "interfaces", refuse)
        ear.ask()
        await ear.close()
        with pytest.raises(OSError, match="no interface can do multicast"):
            await ear.open()

    asyncio.run(act())
