"""Whatever keeps an agent from its hub, it tries again."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from hetero_hvd.agent import hub_sender
from hetero_hvd.agent.hub_sender import HubSender
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import ChannelError


def failing(error):
    """Raises it."""
    raise error


FINDS = {
    "none announces itself": lambda: None,
    "too many files are open": lambda: failing(OSError(errno.EMFILE, os.strerror(errno.EMFILE))),
    "no answer": lambda: failing(TimeoutError()),
    "nonsense": lambda: failing(ChannelError("nonsense")),
    "nobody listens there": lambda: AnnounceTarget("127.0.0.1", 1),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("find", FINDS.values(), ids=FINDS)
def test_who_finds_no_hub_looks_again(tmp_path, monkeypatch, caplog, find):
    """And says once why samples wait."""
    monkeypatch.setattr(hub_sender, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(hub_sender, "MAX_RETRY_SECONDS", 0.001)

    async def act():
        third = asyncio.Event()
        finds = []

        async def find_hub(_preferred):
            finds.append(1)
            if len(finds) == 3:
                third.set()
            return find()

        sender = HubSender(bytes(32), "a", find_hub, tmp_path)
        sending = asyncio.create_task(sender.send())
        reached = asyncio.create_task(third.wait())
        await asyncio.wait([sending, reached], return_when=asyncio.FIRST_COMPLETED)
        is_sending = not sending.done()
        sending.cancel()
        reached.cancel()
        await asyncio.gather(sending, reached, return_exceptions=True)
        sender.close()
        return is_sending

    assert asyncio.run(act())
    assert caplog.text.count("no hub takes samples") == 1
    assert caplog.text.count("no hub has the newest samples") == 1
