"""A disk that takes its time holds up who writes, and never the loop: everybody else is served."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial

import msgspec
import pytest
from websockets.asyncio.client import connect

from hetero_hvd.core.recording.runs import RunReport
from hetero_hvd.discovery import hub_link as link
from hetero_hvd.hub.storage.index import FILE
from tests.hub.test_server import OURS, batch, hello, hub

pytestmark = pytest.mark.timeout(60)
OVERDUE_SECONDS = 10.0


class Stall:
    """A call that does not come back until it is told to."""

    def __init__(self, real):
        self._real = real
        self._may_end = threading.Event()
        self.entered = threading.Event()
        self.was_overdue = False

    def __call__(self, *given):
        """Wait, then do what the real one does."""
        self.entered.set()
        self.was_overdue = not self._may_end.wait(OVERDUE_SECONDS)
        return self._real(*given)

    def end(self):
        """Let it go on; gives whether it had still waited."""
        self._may_end.set()
        return not self.was_overdue


@contextmanager
def stalled_call(monkeypatch, folder, name):  # noqa: ARG001 - as the other one
    """A call of the system."""
    stall = Stall(getattr(os, name))
    with monkeypatch.context() as patched:
        patched.setattr(os, name, stall)
        yield stall
        stall.end()


@contextmanager
def stalled_catalogue(monkeypatch, folder):  # noqa: ARG001 - as the other one
    """Somebody else writes in it."""
    stall = Stall(lambda: None)

    def hold():
        with closing(sqlite3.connect(folder / "hub" / FILE)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            stall()

    thread = threading.Thread(target=hold)
    thread.start()
    stall.entered.wait(OVERDUE_SECONDS)
    yield stall
    stall.end()
    thread.join()


@asynccontextmanager
async def linked(port, node):
    """Says something over a link, and gives the answer."""
    url = f"wss://127.0.0.1:{port}{link.PATH}"
    async with connect(url, ssl=OURS.context, server_hostname=OURS.name, proxy=None) as ours:

        async def say(frame):
            await ours.send(link.encode(frame))
            return link.decode(await ours.recv())

        await say(hello(node=node))
        yield say


REPORT = RunReport(
    run_id="run-1", name="", host="h", folder="/f", url=None, nodes=("a",), now_seconds=1.0,
    started_at_seconds=0.0, ended_at_seconds=None, exit_code=None, reason="", last_step=1,
    first_mark=0, marks=(),
)  # fmt: skip
STATUS = link.HubCommand(name="status", arguments={})
START = link.HubCommand(name="start", arguments={"name": "x"})
TOLD = link.HubCommand(name="report", arguments=msgspec.to_builtins(REPORT))
STALLS = {
    "a batch is flushed": (
        partial(stalled_call, name="fdatasync"), "batch", [STATUS, START, TOLD],
    ),
    "a journal is sealed": (partial(stalled_call, name="fsync"), "seal", [STATUS, START, TOLD]),
    "the catalogue is written": (stalled_catalogue, "start", [STATUS]),
    "a run is written": (stalled_catalogue, "report", [STATUS]),
    "a silent node is noted": (stalled_catalogue, "look", [STATUS]),
}  # fmt: skip
"""What waits for the disk, what makes it wait, and what is answered meanwhile."""


@pytest.mark.parametrize(("stalled", "cause", "orders"), STALLS.values(), ids=STALLS)
def test_nobody_else_waits_for_a_slow_disk(tmp_path, monkeypatch, stalled, cause, orders):
    """The loop goes on, and what waited is done when the disk is done."""

    async def act():
        async with (
            hub(tmp_path) as (server, port),
            linked(port, "") as order,
            linked(port, "") as second,
            linked(port, "a") as send,
        ):
            await send(batch())
            monkeypatch.setattr(server._fleet, "_clock", lambda: 1e9)
            causes = {
                "batch": lambda: send(batch(first=2)),
                "seal": lambda: asyncio.to_thread(server._store.seal),
                "start": lambda: second(START),
                "report": lambda: second(TOLD),
                "look": server._fleet.look,
            }
            with stalled(monkeypatch, folder=tmp_path) as stall:
                waiting = asyncio.ensure_future(causes[cause]())
                await asyncio.to_thread(stall.entered.wait, OVERDUE_SECONDS)
                answers = [await order(each) for each in orders]
                assert not waiting.done()
                assert stall.end()
                await waiting
        return answers

    assert [type(answer) for answer in asyncio.run(act())] == [link.HubAnswer] * len(orders)
