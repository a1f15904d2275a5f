"""A hub as a process that can be killed, nodes that sample this machine, and a link to be cut."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

from hetero_hvd.agent.hub_sender import HubSender
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.hub.client import order
from hetero_hvd.hub.service import open_store
from hetero_hvd.probes.sampling.node_sampler import NodeSampler

KEY = bytes(range(32))
SECONDS = 0.02
"""Between two samples."""


def free_port():
    """One that nobody listens on."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


class HubProcess:
    """`hetero-hvd hub`, which may be killed and started again at the same port."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.process = None
        self.num_kills = 0
        key = folder / "cluster.key"
        key.write_text(KEY.hex())
        key.chmod(0o600)

    def start(self):
        """Start it; it need not listen yet."""
        words = ["--key-file", "cluster.key", "--store", "hub"]
        words += ["--address", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hetero_hvd", "hub", *words], cwd=self.folder, stderr=log
            )

    def kill(self):
        """End it at once, in whatever it is doing."""
        self.process.kill()
        self.num_kills += 1
        self.process.wait()

    @property
    def target(self):
        """Where it listens."""
        return AnnounceTarget("127.0.0.1", self.port)

    async def order(self, action, /, **arguments):
        """Have something done, as soon as it listens."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return await order(KEY, self.target, action, arguments)
            except Exception as error:
                if "no hub answers" not in str(error) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)


class CutLink:
    """Passes bytes on to a port until it is cut; for the loop's thread."""

    def __init__(self, port):
        self._port = port
        self._is_cut = False
        self._writers = set()
        self._server = None
        self.num_cuts = 0

    async def open(self):
        """Gives where to connect to."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return AnnounceTarget("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def cut(self):
        """End all connections, and let none through."""
        self._is_cut = True
        self.num_cuts += bool(self._writers)
        for writer in self._writers:
            writer.transport.abort()

    def mend(self):
        """Let them through."""
        self._is_cut = False

    async def close(self):
        """End."""
        self.cut()
        self._server.close()

    async def _serve(self, reader, writer):
        if self._is_cut:
            writer.transport.abort()
            return
        with suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {writer, ours}
            try:
                await asyncio.wait(
                    [
                        asyncio.ensure_future(_pump(reader, ours)),
                        asyncio.ensure_future(_pump(theirs, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                self._writers -= {writer, ours}
                writer.transport.abort()
                ours.transport.abort()
                return  # noqa: B012 - whatever has ended it
        writer.transport.abort()


async def _pump(reader, writer):
    with suppress(OSError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()


class SampledNode:
    """A node of the test: samples this machine, and remembers what it has sampled."""

    def __init__(self, name, folder, target, **more):
        async def find(_preferred):
            return target

        self.name = name
        self.sender = HubSender(KEY, name, find, folder / f"spool-{name}", **more)
        self.sampled = []
        self._sampler = NodeSampler()
        self._sampler.take()
        self._task = asyncio.create_task(self.sender.send())

    def sample(self):
        """Take one, as the sampler of an agent does."""
        found = msgspec.structs.replace(self._sampler.take(), node=self.name)
        self.sampled.append(msgspec.msgpack.encode(found))
        self.sender.take(found)

    def waits(self):
        """Whether anything was not acknowledged."""
        return self.sender.spool.oldest(1, 1) is not None or bool(self.sender.spool.dropped())

    async def close(self):
        """End."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.sender.close()


async def sample_for(nodes, seconds):
    """Let all of them sample for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for node in nodes:
            node.sample()
        await asyncio.sleep(SECONDS)


async def acknowledged(nodes, seconds=60):
    """Let them sample until the hub has stored some more of each."""
    deadline = time.monotonic() + seconds
    before = [node.sender.num_sent for node in nodes]
    while any(n.sender.num_sent <= known for n, known in zip(nodes, before, strict=True)):
        assert time.monotonic() < deadline, "the hub hears nothing of a node"
        await sample_for(nodes, 0.1)


async def drained(nodes, seconds=60):
    """Wait until the hub has everything."""
    deadline = time.monotonic() + seconds
    while any(node.waits() for node in nodes):
        assert time.monotonic() < deadline, "the hub does not get everything"
        await asyncio.sleep(0.1)


def stored(folder):
    """What a hub that does not run has stored: its store, to be closed."""
    return open_store(folder / "hub")
