"""Agents that have no machine: `-m benchmarks.workloads.simulated_fleet PORT NUMBER SECONDS`.

Each has a connection to the hub and sends a sample a second, of a machine without GPUs, as soon as
it is taken. Printed as JSON is what they have measured: the time until each was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

import msgspec
from websockets.asyncio.client import connect

from hetero_hvd.core.clock import offset_of
from hetero_hvd.discovery import hub_link as link
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.kernel.boot_clock import boot_seconds
from hetero_hvd.security.cluster_tls import ClientTls, for_hubs_client
from hetero_hvd.security.descriptors import raise_limit

KEY = bytes(range(32))
SECONDS = 1.0
START_SECONDS = 60.0
"""Within which all of them connect."""


async def main(port: int, number: int, seconds: float) -> None:
    """Let all of them stream, and print what they have measured."""
    raise_limit()
    tls = for_hubs_client(KEY)
    begin = asyncio.get_running_loop().time() + START_SECONDS * number / 1250
    agents = (_stream(port, f"n{n}", tls, begin, seconds) for n in range(number))
    waits = [wait for found in await asyncio.gather(*agents) for wait in found]
    waits.sort()
    print(  # noqa: T201 - for the process that has started this one
        json.dumps(
            {
                "samples": len(waits),
                "median_seconds": waits[len(waits) // 2],
                "p99_seconds": waits[len(waits) * 99 // 100],
                "max_seconds": waits[-1],
            }
        )
    )


async def _stream(
    port: int, node: str, tls: ClientTls, begin: float, seconds: float
) -> list[float]:
    """One agent; gives how long each sample waited, from when it was due."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(random.random() * max(0.0, begin - loop.time()) * 0.8)  # noqa: S311
    url = f"wss://127.0.0.1:{port}{link.PATH}"
    async with connect(
        url, ssl=tls.context, server_hostname=tls.name, proxy=None, compression=None,
        open_timeout=START_SECONDS, ping_interval=None,
    ) as socket:  # fmt: skip
        asked_at = boot_seconds()
        hello = link.Hello(
            protocol=link.PROTOCOL,
            oldest_protocol=link.OLDEST_PROTOCOL,
            version="0",
            node=node,
            asked_at_seconds=asked_at,
        )
        await socket.send(link.encode(hello))
        welcome = link.decode(await socket.recv())
        assert isinstance(welcome, link.Welcome)  # noqa: S101 - else the benchmark is wrong
        offset = offset_of(
            asked_at=asked_at,
            received_at=welcome.received_at_seconds,
            replied_at=welcome.replied_at_seconds,
            heard_at=boot_seconds(),
        )
        due = begin + random.random()  # noqa: S311
        waits = []
        for sequence in range(1, round(seconds / SECONDS) + 1):
            await asyncio.sleep(max(0.0, due - loop.time()))
            batch = link.SampleBatch(
                stream=f"stream-{node}",
                first=sequence,
                times_seconds=[boot_seconds()],
                samples=[_sample(node)],
                offset_seconds=offset.seconds,
                uncertainty_seconds=offset.uncertainty_seconds,
            )
            await socket.send(link.encode(batch))
            await socket.recv()
            waits.append(loop.time() - due)
            due += SECONDS
        return waits


def _sample(node: str) -> bytes:
    """What a machine without GPUs tells, with figures that change as real ones do."""
    chance = random.random
    return msgspec.msgpack.encode(
        NodeSampled(
            node=node,
            machine_id="0" * 32,
            at_unix_seconds=boot_seconds(),
            seconds=1.0 + chance() / 1000,
            took_seconds=chance() / 100,
            cpu_use_ratio=chance(),
            load=round(8 * chance(), 2),
            memory_used_bytes=4096.0 * round(1e6 * chance()),
            memory_total_bytes=2.0**36,
            network_received_bytes_per_second=1e6 * chance(),
            network_sent_bytes_per_second=1e6 * chance(),
            disk_read_bytes_per_second=0.0,
            disk_written_bytes_per_second=1e5 * chance(),
        )
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
