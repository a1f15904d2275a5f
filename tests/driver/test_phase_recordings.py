"""A script has machines recorded while it is in a phase; without a hub it trains as it would."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from hetero_hvd.core.view.open_phases import MAX_LATE_SECONDS
from hetero_hvd.driver import phase_recordings as module
from hetero_hvd.driver.phase_recordings import MAX_RECORDINGS, PhaseRecordings
from hetero_hvd.errors import TryAgainError
from hetero_hvd.messages import ClockMeasured, SessionsWanted, WorkerExited, WorkerId
from hetero_hvd.run.recordings.frames import read_frames
from tests.hub.rig import acknowledged, drained, streaming
from tests.module_clock import give_clock

A, B = WorkerId("alpha", 0), WorkerId("beta", 0)


def wants(worker, *names, ago=0.0):
    """A worker is in these phases, since so many seconds."""
    return SessionsWanted(worker=worker, names=names, ago_seconds=ago)


def exits(worker):
    """A worker is lost."""
    return WorkerExited(worker=worker, host=str(worker), exit_code=1, words="is lost")


class Hub:
    """One that is there, is not, or is found late."""

    def __init__(self, *, is_there=True, late=0):
        self.is_there = is_there
        self.late = late
        self.seconds = 0.0
        self.orders = []
        self.asked = []

    @asynccontextmanager
    async def conversation(self):
        """Talk with it, once it is found."""
        await asyncio.sleep(self.seconds)
        if not self.is_there or self.late:
            self.late -= bool(self.late)
            raise TryAgainError("no hub answers")
        yield self

    async def order(self, action, arguments):
        """Have something done."""
        name = arguments["name"]
        self.orders.append((action, name))
        self.asked.append(arguments)
        return {"name": f"{name}-2" if action == "start" else name}


EVENTS = {
    "from the first to the last": (
        [wants(A, "load"), wants(B, "load"), wants(A), wants(B)],
        [("start", "load"), ("stop", "load-2")],
    ),
    "who is told again": (
        [wants(A, "load"), wants(A, "load"), wants(A)],
        [("start", "load"), ("stop", "load-2")],
    ),
    "one within another": (
        [wants(A, "load"), wants(A, "fit", "load"), wants(A, "load"), wants(A)],
        [("start", "load"), ("start", "fit"), ("stop", "fit-2"), ("stop", "load-2")],
    ),
    "again": (
        [wants(A, "load"), wants(A), wants(A, "load"), wants(A)],
        [("start", "load"), ("stop", "load-2")] * 2,
    ),
    "a worker is lost in it": (
        [wants(A, "load"), exits(B), exits(A)],
        [("start", "load"), ("stop", "load-2")],
    ),
    "before the job began": (
        [wants(A, "load", ago=30.0), wants(A, ago=9.0)],
        [("cut", "load")],
    ),
    "before the job began, in all workers": (
        [
            wants(A, "load", ago=30.0),
            wants(A, ago=9.0),
            wants(B, "load", ago=31.0),
            wants(B, ago=8.0),
        ],
        [("cut", "load")],
    ),
    "before the job began and now": (
        [wants(A, "load", ago=30.0), wants(A, ago=9.0), wants(B, "load"), wants(B)],
        [("cut", "load"), ("start", "load"), ("stop", "load-2")],
    ),
    "the job ends in it": ([wants(A, "load")], [("start", "load"), ("stop", "load-2")]),
    "none": ([exits(A)], []),
}


AWAY = {
    "until the next phase": ([wants(A, "load"), wants(A)], [wants(A, "fit"), wants(A)]),
    "until the end of the job": ([wants(A, "load"), wants(A)], []),
}
"""Events of which the last one comes while the hub is away; and those after it is back."""


@pytest.mark.parametrize(("events", "later"), AWAY.values(), ids=AWAY)
def test_a_recording_ends_though_the_hub_was_away_as_its_phase_did(events, later):
    """It would go on for ever."""
    hub = Hub()

    async def act():
        recordings = PhaseRecordings(hub, [].append)
        for event in events:
            hub.is_there = event is not events[-1]
            recordings.observe(0.0, event)
            await recordings._changed.join()
        hub.is_there = True
        for event in later:
            recordings.observe(0.0, event)
            await recordings._changed.join()
        await recordings.close()

    asyncio.run(act())
    assert hub.orders.count(("stop", "load-2")) == 1
    assert hub.orders.count(("stop", "fit-2")) == bool(later)


def ordered(events, hub):
    """What is ordered of a hub, and what people are told."""

    async def act():
        recordings = PhaseRecordings(hub, told.append)
        for event in events:
            recordings.observe(0.0, event)
            await asyncio.sleep(0.001)
        await recordings.close()

    told = []
    asyncio.run(act())
    return hub.orders, told


@pytest.mark.parametrize(("events", "orders"), EVENTS.values(), ids=EVENTS)
def test_a_phase_is_one_recording(events, orders):
    """Whoever is in it; by the name that the hub has given to it."""
    assert ordered(events, Hub()) == (orders, [])


def test_a_hub_that_is_found_late_cuts_it_out():
    """Of what it has stored meanwhile."""
    orders, told = ordered([wants(A, "load"), wants(A)], Hub(late=1))
    assert orders == [("cut", "load")]
    assert len(told) == 1


NOW = 1_800_000_000.0


def enters(at_seconds, ago_seconds=0.0):
    """A worker tells that it is in a phase, as its clock shows so much more than `NOW`."""
    at = NOW + at_seconds
    return SessionsWanted(worker=A, names=("load",), at_unix_seconds=at, ago_seconds=ago_seconds)


def clock(offset_seconds, worker=A):
    """What a worker's clock shows more."""
    return ClockMeasured(worker=worker, offset_seconds=offset_seconds, uncertainty_seconds=0.0)


LATE = {
    "its clock is right": ([clock(0.0), enters(-3.5)], -3.5),
    "its clock is ahead": ([clock(100.0), enters(96.5)], -3.5),
    "its clock is behind": ([clock(-100.0), enters(-103.5)], -3.5),
    "its clock was set back": ([clock(0.0), enters(-1000.0)], -MAX_LATE_SECONDS),
    "its clock was set forward": ([clock(0.0), enters(1000.0)], 0.0),
    "its clock is not known": ([clock(0.0, B), enters(-3.5)], 0.0),
    "nobody was there to be told": ([enters(0.0, 300.0)], -300.0),
    "nor in time when somebody was": ([clock(0.0), enters(-3.5, 300.0)], -303.5),
    "it does not say when": ([clock(0.0), wants(A, "load")], 0.0),
}


@pytest.mark.parametrize(("events", "begin_seconds"), LATE.values(), ids=LATE)
def test_what_is_heard_late_begins_when_it_began(events, begin_seconds, monkeypatch):
    """A driver that has much to do hears late of what a worker tells; all samples are stored."""
    give_clock(monkeypatch, module, time=lambda: NOW)
    hub = Hub()
    ordered(events, hub)
    assert hub.asked[0]["from"] == pytest.approx(begin_seconds, abs=0.5)


def test_a_recording_begins_with_its_phase_however_long_the_hub_is_looked_for():
    """The hub counts from when it is asked."""
    hub = Hub()
    hub.seconds = 0.7
    ordered([wants(A, "load")], hub)
    assert hub.asked[0]["from"] == pytest.approx(-0.7, abs=0.3)


def test_who_has_no_hub_is_told_once():
    """And trains."""
    orders, told = ordered([wants(A, "load"), wants(A), wants(A, "fit")], Hub(is_there=False))
    assert orders == []
    assert told == ["note: phase 'load' is not recorded: no hub answers; the training goes on"]


def test_a_phase_of_each_step_is_no_recording():
    """After so many no more is recorded, which is told."""
    events = [wants(A, *names) for _ in range(MAX_RECORDINGS + 5) for names in (("step",), ())]
    orders, told = ordered(events, Hub())
    assert len(orders) == 2 * MAX_RECORDINGS
    assert len(told) == 1
    assert "the most" in told[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nobody waits long at the end."""
    monkeypatch.setattr(module, "CLOSE_SECONDS", 5.0)


@pytest.mark.process
def test_a_job_has_its_phase_recorded(start_job, tmp_path):
    """Two workers, one recording of all machines."""
    (tmp_path / "hub").mkdir()

    async def act():
        async with streaming(tmp_path / "hub", 1) as (hub, nodes):
            await acknowledged(nodes)
            job = await asyncio.to_thread(
                start_job,
                names=("alpha", "beta"),
                script=("5", "session"),
                hub=str(hub.target),
                cluster_key_file=str(tmp_path / "hub" / "cluster.key"),
            )
            ended = asyncio.create_task(asyncio.to_thread(job.wait))
            while not ended.done():
                nodes[0].sample()
                await asyncio.sleep(0.05)
            await drained(nodes)
            return ended.result(), job.output, (await hub.order("status"))["sessions"]

    code, output, sessions = asyncio.run(act())
    assert code == 0
    assert not [line for line in output if "is not recorded" in line]
    assert [each["name"] for each in sessions] == ["fit"]
    frames = list(read_frames(tmp_path / "hub" / sessions[0]["folder"]))
    assert {frame.node for frame in frames} == {"node0"}


@pytest.mark.process
def test_a_job_without_a_hub_says_so_once_and_trains(start_job):
    """Though each worker asks for it."""
    job = start_job(names=("alpha", "beta"), script=("5", "session"))
    assert job.wait() == 0
    told = [line for line in job.output if "is not recorded" in line]
    why = "no hub is known without cluster_key_file"
    assert told == [f"note: phase 'fit' is not recorded: {why}; the training goes on"]
