"""The agent's port: only who proves the cluster key gets anything started."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hetero_hvd.agent.server import AgentServer
from hetero_hvd.discovery import encrypted_link as link
from hetero_hvd.errors import ChannelError
from hetero_hvd.exit_codes import EXIT_NO_PLACE
from hetero_hvd.security.cluster_key import make_key, read_key

KEY = bytes(range(32))


async def converse(*frames, key=KEY, **more):
    """Send these frames after the agent's nonce; the agent, and what it answered."""
    server = AgentServer(key, **more)
    port = await server.listen("127.0.0.1", 0)
    answers = []
    try:
        async with connect(f"ws://127.0.0.1:{port}{link.PATH}", proxy=None) as socket:
            theirs = await socket.recv()
            for frame in frames:
                await socket.send(frame(theirs) if callable(frame) else frame)
            with suppress(ConnectionClosed):
                while True:
                    answers.append(await socket.recv())
    finally:
        await server.close()
    session = link.Link(key, "driver", theirs + OWN)
    return server, [session.open(answer) for answer in answers]


OWN = bytes(16)


def sealed(key, frame):
    """A first frame under a key."""
    return lambda theirs: link.Link(key, "driver", theirs + OWN).seal(frame)


def test_who_holds_the_key_is_served():
    """A supervisor starts, says how many GPUs there are, and ends; nothing is refused."""
    agent, answers = asyncio.run(converse(OWN, sealed(KEY, link.Start(what="gpus"))))
    assert (agent.started, agent.refused) == (1, 0)
    said, ended = answers
    assert said.data.strip().isdigit()
    assert ended == link.Exited(code=0)


@pytest.mark.parametrize(
    "frames",
    [
        (OWN, sealed(bytes(32), link.Start(what="worker"))),
        (OWN, sealed(KEY, link.Data(data=b"{}"))),
        (OWN, lambda _: link.Link(KEY, "driver", bytes(32)).seal(link.Start(what="worker"))),
        (OWN, lambda theirs: link.Link(KEY, "agent", theirs + OWN).seal(link.Start(what="gpus"))),
        (b"short", b"x"),
        ("text", "text"),
        (OWN, "text"),
    ],
    ids=["other-key", "not-a-start", "replayed", "reflected", "nonce", "text", "text-after"],
)
def test_who_does_not_gets_nothing(frames):
    """Each is refused, counted, and starts nothing."""
    agent, answers = asyncio.run(converse(*frames))
    assert (agent.started, agent.refused, answers) == (0, 1, [])


def test_an_agent_of_a_node_without_slots_starts_nothing():
    """The key opens nothing there."""
    start = sealed(KEY, link.Start(what="worker"))
    agent, answers = asyncio.run(converse(OWN, start, num_slots=0))
    assert (agent.started, agent.refused, answers) == (0, 1, [])


class Caller:
    """A driver that asks an agent for a worker, and holds on to it."""

    def __init__(self, port, job, what="worker"):
        self._url = f"ws://127.0.0.1:{port}{link.PATH}"
        self._start = link.Start(what=what, job=job)

    async def call(self):
        """Ask."""
        self.socket = await connect(self._url, proxy=None)
        theirs = await self.socket.recv()
        self._session = link.Link(KEY, "driver", theirs + OWN)
        await self.socket.send(OWN)
        await self.socket.send(self._session.seal(self._start))
        return self

    async def answer(self):
        """Output and exit code."""
        said, ended = [self._session.open(await self.socket.recv()) for _ in range(2)]
        return said.data.decode(), ended.code


def on_an_agent(scenario, **more):
    """Run a scenario with an agent that starts real supervisors, which wait for their orders."""

    async def run():
        server = AgentServer(KEY, **more)
        port = await server.listen("127.0.0.1", 0)
        try:
            await asyncio.wait_for(scenario(server, port), 30)
        finally:
            await server.close()

    asyncio.run(run())


async def until(condition):
    """Wait for what no event tells about."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.process
@pytest.mark.parametrize("num_slots", [1, 2])
def test_an_agent_starts_no_more_workers_than_it_has_slots(num_slots):
    """Of many starts at once, as of a second job, all above its slots hear who has them."""

    async def scenario(server, port):
        first = [await Caller(port, "first run").call() for _ in range(num_slots)]
        await until(lambda: server.started == num_slots)
        others = [await Caller(port, "\x1b[31mother").call() for _ in range(20)]
        slots = "its only slot" if num_slots == 1 else "all 2 slots"
        for other in others:
            text, code = await other.answer()
            assert code == EXIT_NO_PLACE
            assert text.startswith(f"no free slot: job first run from 127.0.0.1 has {slots}; ")
        assert server.started == num_slots
        asked = await Caller(port, "other", what="gpus").call()
        assert (await asked.answer())[1] == 0  # a question takes no slot
        for caller in first:
            await caller.socket.close()

    on_an_agent(scenario, num_slots=num_slots)


@pytest.mark.process
@pytest.mark.parametrize("job", ["first run", "other"])
def test_a_slot_whose_worker_ends_is_waited_for(job):
    """A job that restarts its worker, or one that comes after it, gets the slot when it is free."""

    async def scenario(server, port):
        first = await Caller(port, "first run").call()
        await until(lambda: server.started == 1)
        if job == "other":
            await first.socket.close()
        second = await Caller(port, job).call()
        await first.socket.close()
        await until(lambda: server.started == 2)
        await second.socket.close()

    on_an_agent(scenario)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_no_bytes_break_a_link(content, own):
    """Garbage, sealed or not, is a ChannelError."""
    nonces = bytes(16) + own
    receiver = link.Link(KEY, "agent", nonces)
    with pytest.raises(ChannelError):
        receiver.open(content)
    sender = link.Link(KEY, "driver", nonces)
    genuine = sender._out.encrypt(bytes(12), b"\xc1" + content, None)
    with pytest.raises(ChannelError):
        receiver.open(genuine)


def test_a_frame_counts_once_and_in_its_order():
    """A repeated or an overtaking frame is not opened."""
    sender, receiver = (link.Link(KEY, role, bytes(32)) for role in ("driver", "agent"))
    first, second = sender.seal(link.Data(data=b"a")), sender.seal(link.Data(data=b"b"))
    with pytest.raises(ChannelError):
        receiver.open(second)
    assert receiver.open(first) == link.Data(data=b"a")
    with pytest.raises(ChannelError):
        receiver.open(first)


@pytest.mark.process
def test_a_worker_runs_behind_the_agent_and_ends_with_the_connection(tmp_path):
    """Output and exit code come back; a lost connection leaves no process."""
    make_key(tmp_path / "key")

    async def run(command, *, cut):
        server = AgentServer(read_key(tmp_path / "key"))
        port = await server.listen("127.0.0.1", 0)
        dial = [sys.executable, "-m", "hetero_hvd.agent.client", "127.0.0.1", str(port)]
        process = await asyncio.create_subprocess_exec(
            *dial, str(tmp_path / "key"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        order = {"command": command, "directory": str(tmp_path), "environment": {}, "gpu": None}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await process.stdout.readline()
        if cut:
            process.kill()
        code = await process.wait()
        await server.close()
        return line.decode().strip(), code

    assert asyncio.run(run(["sh", "-c", "echo $((6*7)); exit 5"], cut=False)) == ("42", 5)
    pid, _ = asyncio.run(run(["sh", "-c", "echo $$; sleep 50"], cut=True))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
