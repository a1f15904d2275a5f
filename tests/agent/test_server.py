"""The agent's port: only who holds the cluster key gets anything started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidMessage

from hetero_hvd.agent import client
from hetero_hvd.agent.server import AgentServer
from hetero_hvd.discovery import agent_link as link
from hetero_hvd.errors import ChannelError
from hetero_hvd.exit_codes import EXIT_NO_PLACE
from hetero_hvd.security import web_socket
from hetero_hvd.security.certificates import Authority
from hetero_hvd.security.cluster_key import make_key, read_key
from hetero_hvd.security.cluster_tls import ClientTls, for_driver
from hetero_hvd.security.tls import client_context, server_context
from tests.tls_relay import ATTACKS, Relay

KEY = bytes(range(32))
OURS = for_driver(KEY)


def dial(port, tls=OURS):
    """Connect as a driver does; to be awaited, or entered."""
    url = f"wss://127.0.0.1:{port}{link.PATH}"
    spoken = [link.subprotocol()]
    return connect(url, ssl=tls.context, server_hostname=tls.name, subprotocols=spoken, proxy=None)


async def converse(*frames, tls=OURS, **more):
    """Send these frames; the agent, and what it answered."""
    server = AgentServer(KEY, **more)
    port = await server.listen("127.0.0.1", 0)
    answers = []
    try:
        with suppress(ConnectionClosed, InvalidMessage):
            async with dial(port, tls) as socket:
                for frame in frames:
                    await socket.send(frame)
                while True:
                    answers.append(link.decode(await socket.recv()))
    finally:
        await server.close()
    return server, answers


def test_who_holds_the_key_is_served():
    """A supervisor starts, says how many GPUs there are, and ends; nothing is refused."""
    agent, answers = asyncio.run(converse(link.encode(link.Start(what="gpus"))))
    assert (agent.started, agent.refused) == (1, 0)
    said, ended = answers
    assert said.data.strip().isdigit()
    assert ended == link.Exited(code=0)


@pytest.mark.parametrize(
    "frames",
    [
        (link.encode(link.Data(data=b"{}")),),
        (link.encode(link.Exited(code=0)),),
        (b"\xc1",),
        (b"",),
        ("text",),
        (bytes(2 * link.MAX_FRAME_BYTES),),
        (msgspec.msgpack.encode({"type": "\u20ac" * 200}),),
    ],
    ids=["not-a-start", "what-agents-say", "noise", "empty", "text", "too-long", "a-long-name"],
)
def test_who_says_something_else_gets_nothing(frames, caplog):
    """Each is refused, counted, and starts nothing; nothing breaks."""
    agent, answers = asyncio.run(converse(*frames))
    assert not [record for record in caplog.records if record.exc_info]
    assert (agent.started, agent.refused, answers) == (0, 1, [])


def certified(authority, name, *roles):
    """A driver's side with a certificate that this authority has signed; believes any agent."""
    context = client_context(authority.issue(name, roles=roles))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return ClientTls(context, "agent", by_key=True)


STRANGERS = {
    "another key": certified(Authority.of_key(bytes(32)), "driver", "client"),
    "an authority of its own": certified(Authority.new(), "driver", "client"),
    "an agent": certified(Authority.of_key(KEY), "agent", "server"),
    "the driver's name as a server": certified(Authority.of_key(KEY), "driver", "server"),
    "an agent as a client": certified(Authority.of_key(KEY), "agent", "client"),
}


@pytest.mark.parametrize("tls", STRANGERS.values(), ids=STRANGERS)
def test_who_is_no_driver_of_the_cluster_gets_nothing(tls):
    """Whose certificate is of another authority, or for another role."""
    agent, answers = asyncio.run(converse(link.encode(link.Start(what="worker")), tls=tls))
    assert (agent.started, agent.refused, answers) == (0, 1, [])


FALSE_AGENTS = {
    "of another key": Authority.of_key(bytes(32)).issue("agent", roles=["server"]),
    "a driver": Authority.of_key(KEY).issue("driver", roles=["client"]),
    "a driver's name": Authority.of_key(KEY).issue("driver", roles=["server"]),
}


@pytest.mark.parametrize("bundle", FALSE_AGENTS.values(), ids=FALSE_AGENTS)
def test_a_driver_does_not_talk_to_a_false_agent(bundle):
    """Of another cluster, or with another role."""

    async def scenario():
        tls = server_context(bundle)
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls)
        with pytest.raises(ChannelError, match="does not hold this cluster's key"):
            await client.dial(*server.sockets[0].getsockname(), OURS, link.Start(what="gpus"))
        server.close()

    asyncio.run(scenario())


VERSIONS = {
    "a newer hetero_hvd": ["hetero-hvd.9.9.9.1"],
    "another protocol": ["hetero-hvd.0.1.0.0"],
    "an older one, which names none": None,
    "several": ["a", link.subprotocol()],
    "a long name": ["x" * 3000],
}


@pytest.mark.parametrize("case", VERSIONS)
def test_a_driver_of_another_version_is_refused_by_name(case, monkeypatch, caplog):
    """In one line on both sides; nothing is started."""

    async def scenario():
        server = AgentServer(KEY)
        port = await server.listen("127.0.0.1", 0)

        def offer(*words, **more):
            return connect(*words, **more | {"subprotocols": VERSIONS[case]})

        monkeypatch.setattr(web_socket, "connect", offer)
        with pytest.raises(ChannelError) as found:
            await client.dial("127.0.0.1", port, OURS, link.Start(what="gpus"))
        await server.close()
        assert (server.started, server.refused) == (0, 1)
        return str(found.value)

    told = asyncio.run(scenario())
    (record,) = caplog.records
    for line in (told, record.getMessage()):
        assert (VERSIONS[case] or ["an older hetero_hvd"])[0][:80] in line
        assert f"the agent {link.subprotocol()}: install the same version" in line
        assert "\n" not in line
        assert len(line) < 300


def answers(words):
    """An agent that says this to whoever asks."""

    async def answer(connection, _):
        return connection.respond(426, words)

    return answer


def test_what_an_agent_answers_is_shown_as_words():
    """Nothing of it reaches the terminal as an order, or fills it."""

    async def scenario(told):
        tls = server_context(Authority.of_key(KEY).issue("agent", roles=["server"]))
        async with serve(lambda _: None, "127.0.0.1", 0, ssl=tls, process_request=told) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ChannelError) as found:
                await client.dial("127.0.0.1", port, OURS, link.Start(what="gpus"))
        return str(found.value)

    line = asyncio.run(scenario(answers("\x1b[31mred\n" + "x" * 10_000)))
    assert line.isprintable()
    assert len(line) <= client.MAX_REFUSAL_BYTES


def test_an_agent_of_an_older_version_is_refused():
    """Which knows nothing of versions, and would start a worker."""
    heard = []

    async def scenario():
        tls = server_context(Authority.of_key(KEY).issue("agent", roles=["server"]))

        async def old(socket):
            with suppress(ConnectionClosed):
                heard.append(await socket.recv())

        async with serve(old, "127.0.0.1", 0, ssl=tls) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ChannelError, match="the agent is of an older hetero_hvd"):
                await client.dial("127.0.0.1", port, OURS, link.Start(what="gpus"))

    asyncio.run(scenario())
    assert heard == []


def test_an_agent_that_speaks_no_tls_is_told_so():
    """Which answers in plain text, as agents did."""

    async def answer(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        with pytest.raises(ChannelError, match="is the agent of another version"):
            await client.dial(*server.sockets[0].getsockname(), OURS, link.Start(what="gpus"))
        server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_who_sits_between_them_starts_nothing(attack):
    """What is changed, repeated, left out or reflected never becomes another order."""

    async def scenario():
        server = AgentServer(KEY)
        port = await server.listen("127.0.0.1", 0)
        async with Relay(port, attack()) as (relay, between):
            socket = await dial(between)
            relay.is_attacking = True
            with suppress(ConnectionClosed):
                for _ in range(3):
                    await socket.send(link.encode(link.Data(data=b"{}")))
                await socket.recv()
        await server.close()
        assert (server.started, server.refused) == (0, 1)

    asyncio.run(scenario())


def test_a_start_that_was_overheard_is_of_no_use():
    """All that a driver has sent, sent once more, starts nothing."""

    async def scenario():
        server = AgentServer(KEY)
        port = await server.listen("127.0.0.1", 0)
        async with Relay(port) as (spy, between):
            socket = await dial(between)
            await socket.send(link.encode(link.Start(what="gpus")))
            with suppress(ConnectionClosed):
                while True:
                    await socket.recv()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(spy.seen))
        await reader.read()
        writer.close()
        await server.close()
        assert (server.started, server.refused) == (1, 1)

    asyncio.run(scenario())


def test_an_agent_of_a_node_without_slots_starts_nothing():
    """The key opens nothing there."""
    start = link.encode(link.Start(what="worker"))
    agent, answers = asyncio.run(converse(start, num_slots=0))
    assert (agent.started, agent.refused, answers) == (0, 1, [])


class Caller:
    """A driver that asks an agent for a worker, and holds on to it."""

    def __init__(self, port, job, what="worker"):
        self._port = port
        self._start = link.Start(what=what, job=job)

    async def call(self):
        """Ask."""
        self.socket = await dial(self._port)
        await self.socket.send(link.encode(self._start))
        return self

    async def answer(self):
        """Output and exit code."""
        said, ended = [link.decode(await self.socket.recv()) for _ in range(2)]
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


@pytest.mark.parametrize("what", ["worker", "gpus", "samples"])
def test_an_agent_that_leaves_starts_nothing(what):
    """Neither a worker nor an answer, which might have no end either."""

    async def scenario(server, port):
        server.refuse("it leaves")
        await server.end_workers(0.0)
        assert await (await Caller(port, "late", what=what).call()).answer() == (
            "it leaves\n",
            EXIT_NO_PLACE,
        )
        assert server.started == 0
        server.offer()
        asked = await Caller(port, "again", what="gpus").call()
        assert (await asked.answer())[1] == 0

    on_an_agent(scenario)


ENDINGS = {"by itself": 5, "its driver is lost": None, "the agent leaves": None}


@pytest.mark.process
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_a_worker_has_started_keeps_no_slot(tmp_path, ending):
    """A process in a session of its own outlives the worker, with the worker's output."""
    last = f"exit {ENDINGS[ending]}" if ENDINGS[ending] else "exec sleep 100"
    begin = "setsid sh -c 'echo $$; touch begun; exec sleep 100' &"
    command = ["sh", "-c", f"{begin} until test -e begun; do sleep 0.01; done; {last}"]
    order = {"command": command, "directory": str(tmp_path), "environment": {}, "gpu": None}

    async def scenario(server, port):
        first = await Caller(port, "first").call()
        await first.socket.send(link.encode(link.Data(data=json.dumps(order).encode() + b"\n")))
        pid = int(link.decode(await first.socket.recv()).data)
        try:
            if ENDINGS[ending]:
                assert link.decode(await first.socket.recv()).code == ENDINGS[ending]
            elif ending == "its driver is lost":
                first.socket.transport.abort()
            else:
                await server.end_workers(0.0)
            await until(lambda: server.is_idle)
            os.kill(pid, 0)
        finally:
            os.kill(pid, signal.SIGKILL)

    on_an_agent(scenario)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=50)))
def test_no_bytes_break_a_link(content):
    """Garbage is a ChannelError, nothing worse."""
    with pytest.raises(ChannelError):
        link.decode(content)


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
