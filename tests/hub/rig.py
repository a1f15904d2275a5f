"""A hub as a process that can be killed, nodes that sample this machine, and a link to be cut."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, closing, suppress

import msgspec
import pytest

from hetero_hvd.agent import hub_sender
from hetero_hvd.agent.hub_sender import HubSender
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.discovery.hub_client import conversation
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import TryAgainError
from hetero_hvd.hub.service import open_store
from hetero_hvd.probes.sampling.node_sampler import NodeSampler

KEY = bytes(range(32))
ALL = RecordingSession(name="all", from_microseconds=0)
SECONDS = 0.02
"""Between two samples."""


def free_port():
    """One that nobody listens on."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


async def order(key, target, action, arguments):
    """Have one thing done by the hub at a place."""
    async with conversation(key, target) as talk:
        return await talk.order(action, arguments)


class HubProcess:
    """`hetero-hvd hub`, which may be killed and started again at the same port.

    Args:
        folder: Where it runs.
        address: To listen on.
        environment: Of the process, beside ours.
        secret: The cluster key; others announce themselves by the usual one, too.
    """

    def __init__(self, folder, address="127.0.0.1", environment=(), secret=KEY):
        self.folder = folder
        self.secret = secret
        self.address = address
        self.environment = dict(environment)
        self.port = free_port()
        self.process = None
        self.num_kills = 0
        key = folder / "cluster.key"
        key.write_text(secret.hex())
        key.chmod(0o600)

    def start(self, *more, program=("-m", "hetero_hvd")):
        """Start it; it need not listen yet.

        Args:
            more: Further words of the command.
            program: In the place of the usual one.
        """
        words = ["--key-file", "cluster.key", "--store", "hub"]
        words += ["--address", self.address, "--port", str(self.port), *more]
        with (self.folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "hub", *words],
                cwd=self.folder,
                stderr=log,
                env=os.environ | self.environment,
            )

    @property
    def log(self):
        """What all of them have said so far."""
        return (self.folder / "hub.log").read_text()

    def kill(self):
        """End it at once, in whatever it is doing."""
        self.process.kill()
        self.num_kills += 1
        self.process.wait()

    @property
    def target(self):
        """Where it listens."""
        return AnnounceTarget(self.address, self.port)

    async def order(self, action, /, **arguments):
        """Have something done, as soon as it listens."""
        deadline = time.monotonic() + 120
        while True:
            try:
                return await self.once(action, **arguments)
            except TryAgainError:
                assert time.monotonic() < deadline, self.log
                await asyncio.sleep(0.1)

    async def once(self, action, /, **arguments):
        """Have something done, if it listens."""
        return await order(self.secret, self.target, action, arguments)


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
            return self.target

        self.name = name
        self.target = target
        self.sender = HubSender(KEY, name, find, folder / f"spool-{name}", **more)
        self.sampled = []
        self._sampler = NodeSampler(wall_clock=lambda: hub_sender.time.time())  # noqa: PLW0108 - as it is then
        self._sampler.take()
        self._task = asyncio.create_task(self.sender.send())

    def sample(self):
        """Take one, as the sampler of an agent does."""
        found = msgspec.structs.replace(self._sampler.take(), node=self.name)
        self.sampled.append(msgspec.msgpack.encode(found))
        self.sender.take(found)

    def num_done(self):
        """Of its samples, the oldest first, those that wait no more."""
        waiting = self.sender.spool.oldest(1, 1)
        return len(self.sampled) if waiting is None else waiting.samples[0].sequence - 1

    def waits(self):
        """Whether anything was not acknowledged."""
        return self.sender.spool.oldest(1, 1) is not None or bool(self.sender.spool.dropped())

    async def close(self):
        """End."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.sender.close()


@pytest.fixture
def soon(monkeypatch):
    """Nodes try again soon."""
    monkeypatch.setattr(hub_sender, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(hub_sender, "MAX_RETRY_SECONDS", 0.2)


@asynccontextmanager
async def streaming(tmp_path, num_nodes, start=HubProcess.start, **more):
    """A hub, and nodes that reach it directly."""
    hub = HubProcess(tmp_path, **more)
    start(hub)
    nodes = [SampledNode(f"node{n}", tmp_path, hub.target) for n in range(num_nodes)]
    try:
        yield hub, nodes
    finally:
        for node in nodes:
            await node.close()
        hub.kill()


async def sample_until(nodes, is_so, seconds=120):
    """Let all of them sample until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not become so"
        await sample_for(nodes, 0.1)


async def sample_for(nodes, seconds):
    """Let all of them sample for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for node in nodes:
            node.sample()
        await asyncio.sleep(SECONDS)


async def while_sampling(nodes, ordered):
    """What comes of an order, while all of them sample."""
    task = asyncio.ensure_future(ordered)
    while not task.done():
        await sample_for(nodes, SECONDS)
    return await task


async def acknowledged(nodes, seconds=120):
    """Let them sample until the hub has stored something of each that is sampled from now on.

    What is acknowledged first may have been so by a hub that is dead by now.
    """
    before = {node: (len(node.sampled), node.sender.num_sent) for node in nodes}

    def is_stored(node):
        number, num_sent = before[node]
        return node.num_done() > number and node.sender.num_sent > num_sent

    await sample_until(nodes, lambda: all(map(is_stored, nodes)), seconds)


async def drained(nodes, seconds=120):
    """Wait until the hub has everything."""
    deadline = time.monotonic() + seconds
    while any(node.waits() for node in nodes):
        assert time.monotonic() < deadline, "the hub does not get everything"
        await asyncio.sleep(0.1)


def stored(folder):
    """What a hub that does not run has stored: its store, for `with`."""
    return closing(open_store(folder / "hub"))


def frames_of(store, session=ALL):
    """Node to its samples and their numbers, in the order in which they are told."""
    found = {}
    for node, _, recorded in store.frames(session):
        found.setdefault(node, []).append(recorded)
    return found


def slice_of(found, session):
    """What a session is of all that was stored."""
    each_node = ((node, each) for node, frames in found.items() for each in frames)
    return [pair for pair in each_node if session.has(pair[0], pair[1].at_microseconds)]
