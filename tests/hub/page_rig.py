"""A hub to be looked at in a browser: a fleet, sessions, and the runs that join in."""

from __future__ import annotations

import asyncio
import math

import msgspec

from hetero_hvd.core.recording.health import FleetHealth
from hetero_hvd.core.recording.runs import RunMark, RunReport
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.hub.storage.index import HEALTHY, UNHEALTHY, FleetMark
from hetero_hvd.messages import DeviceSample, NodeSampled
from tests.driver import chromium
from tests.hub.test_api import TOKENS, api, sent
from tests.hub.test_store import batch

MARKUP = "<img src=x onerror=document.title='broken'>"
MINUTES = 30
DRAWN = "document.getElementById('plot').dataset.drawn"


class Lab:
    """A hub with a node of two GPUs that was silent, one that is silent, a program, and a run."""

    def __init__(self):
        self.began = 0.0

    async def report(self, client):
        """A run that has begun a minute after the first sample, as its driver tells of it."""
        marks = (
            RunMark(300.0, "reset", f"beta lost {MARKUP}"),
            RunMark(330.0, "plan", "alpha 36, gamma 12"),
            RunMark(900.0, "phase", "load"),
        )
        report = RunReport(
            run_id="run-1",
            name=f"digits {MARKUP}",
            host="alpha",
            folder="/runs/digits",
            url="http://127.0.0.1:1/",
            nodes=("alpha",),
            now_seconds=60.0 * MINUTES,
            started_at_seconds=60.0,
            ended_at_seconds=None,
            exit_code=None,
            reason="",
            last_step=1200,
            first_mark=0,
            marks=marks,
        )
        await client.commands.act("report", msgspec.to_builtins(report))

    async def fill(self, client):
        """Half an hour until now, with ten minutes of which nothing is known."""
        now = client.store.now_seconds()
        self.began = now - 60 * MINUTES
        for first, count in ((1, 600), (1201, 600)):
            client.store.commit([self.part(first, count)])
        client.store.seal()
        found = batch(1, 1, stream="beta-1", node="beta", offset=now - 1500)
        client.store.commit([found])
        marks = [(600, "alpha", UNHEALTHY), (1200, "alpha", HEALTHY), (1300, "beta", UNHEALTHY)]
        client.store.index.mark(
            *(FleetMark(round((self.began + at) * 1e6), node, kind, "") for at, node, kind in marks)
        )
        for name, end, more in (
            ("night", None, {"keep_seconds": 604800.0, "keep_bytes": 20_000_000_000}),
            ("over", now - 60, {"nodes": ("alpha",), "every_seconds": 0.5}),
        ):
            end_microseconds = None if end is None else round(end * 1e6)
            session = RecordingSession(
                name=name,
                from_microseconds=round(self.began * 1e6),
                until_microseconds=end_microseconds,
                **more,
            )
            await client.fleet.put(session, is_new=True)
        client.fleet.note("over", "loses its first samples in a day")
        client.fleet.health = FleetHealth(client.store.nodes(), 1e9, {"beta": 1300.0})

    def part(self, first, count):
        """So many samples of alpha from a number on, which are seconds after the begin."""
        found = batch(first, count, stream="alpha-1", node="alpha", offset=self.began - 900)
        found.batch.samples[:] = [
            msgspec.msgpack.encode(self._sample(n)) for n in range(first, first + count)
        ]
        return found

    def _sample(self, number):
        gpus = tuple(
            DeviceSample(
                index=index,
                name=f"NVIDIA H100 80GB HBM3 {MARKUP}",
                use_ratio=0.5 + 0.4 * math.sin(number / 90 + index),
                memory_used_bytes=60 * 2.0**30,
                memory_total_bytes=80 * 2.0**30,
                temperature_celsius=55.0,
                power_watts=500.0,
            )
            for index in range(2)
        )
        return NodeSampled(
            node="alpha", seconds=0.5, cpu_use_ratio=0.1, memory_used_bytes=2.0**34,
            memory_total_bytes=2.0**38, devices=gpus,
        )  # fmt: skip


def browse(folder, act, address="#token={read}"):
    """What comes of a visit of the lab's page; the errors of its scripts are ours."""
    lab = Lab()

    async def visit():
        async with api(folder) as client:
            await lab.fill(client)
            await lab.report(client)
            await client.ask("/v1/ingest", sent(1, 3), role="ingest")
            shown = address.format(read=TOKENS["read"].decode())

            async def watched(tab):
                await tab.until("document.readyState === 'complete' && document.title !== ''")
                try:
                    return await act(tab, client, lab)
                finally:
                    assert await tab.value("document.title") == "hetero-hvd hub"
                    assert tab.errors == []

            return await chromium.look(f"{client.url}/{shown}", watched)

    return asyncio.run(visit())
