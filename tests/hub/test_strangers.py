"""Who opens connections and never says hello costs a hub little memory, and keeps nobody out."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import cycle

import psutil
import pytest

from hetero_hvd.hub.server import MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS
from tests.hub.rig import HubProcess
from tests.security.test_connection_limiter import first_words

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
NUM_STRANGERS = 400
WORDS = (b"", first_words(), first_words()[:50])
SENDERS = {"one": ["127.0.0.2"], "three": ["127.0.0.2", "127.0.0.3", "127.0.0.4"]}
MEBIBYTE = 2**20


@pytest.mark.parametrize("addresses", SENDERS.values(), ids=SENDERS)
def test_half_open_connections_are_few(tmp_path, addresses):
    """In all and of one address; each that is cut off is counted, and that is told once."""

    async def flood(hub):
        held = []
        for words, address in zip(range(NUM_STRANGERS), cycle(addresses)):
            end = socket.socket()
            end.setblocking(False)
            end.bind((address, 0))
            await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", hub.port))
            await asyncio.get_running_loop().sock_sendall(end, WORDS[words % len(WORDS)])
            held.append(end)
        return held

    async def act():
        hub = HubProcess(tmp_path)
        hub.start()
        try:
            await hub.order("status")
            process = psutil.Process(hub.process.pid)
            before = process.num_fds(), process.memory_info().rss
            held = await flood(hub)
            assert (await hub.order("status"))["nodes"] == []
            limit = MAX_STRANGERS if len(addresses) > 2 else MAX_STRANGERS_OF_ADDRESS
            deadline = time.monotonic() + 60
            while process.num_fds() - before[0] > limit + 1:  # who was cut off is closed just now
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            grown = process.memory_info().rss - before[1]
            for end in held:
                end.close()
            return grown, hub.log
        finally:
            hub.kill()

    grown, log = asyncio.run(act())
    assert grown < 100 * MEBIBYTE
    assert 1 <= log.count("refused: others came") <= 10
