"""Machines are recorded, whatever happens to hub and network: what is exported is what was sampled.

Three hosts with an agent each, which samples the real processors and GPUs of a stand-in for NVML.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from hetero_hvd.hub.storage.index import HubIndex
from hetero_hvd.run.recordings.frames import read_frames
from tests.cluster.logged_agent import read_log
from tests.fake_nvml import library as fake_nvml
from tests.hub.rig import KEY, HubProcess, order, slice_of, stored

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(180)]
HOSTS = {"alpha": 200, "beta": 200, "gamma": 200}
DEGREES = {"alpha": 41, "beta": 42, "gamma": 43}
SMALL_SPOOL_BYTES = 2**14
"""Of gamma; the others have room for days."""

AGENT = str(Path(__file__).with_name("logged_agent.py"))


class Fleet:
    """A hub here and an agent on each host; ends all that it has started."""

    def __init__(self, folder, cluster):
        self.folder = folder
        self.hub = HubProcess(folder, cluster.gateway)
        self.cluster = cluster
        self.stack = ExitStack()
        self.num_cuts = 0
        self._nvml = fake_nvml.build(folder)

    def start_agent(self, name, *more):
        """Start the agent of a host."""
        told = self.folder / f"gpus-{name}"
        told.mkdir()
        (told / "temperature").write_text(str(DEGREES[name]))
        environment = fake_nvml.environment(self._nvml, told=told)
        environment["HETERO_HVD_SAMPLES_FOLDER"] = str(self.folder / f"samples-{name}")
        words = ["agent", "--key-file", "cluster.key", "--name", name, "--slots", "0"]
        words += ["--spool", f"spool-{name}", *(more or ("--hub", str(self.hub.target)))]
        with (self.folder / f"{name}.txt").open("ab") as output:
            process = subprocess.Popen(
                [*self.cluster[name].enter(), sys.executable, AGENT, f"{name}.log", *words],
                cwd=self.folder, env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def sampled(self, name):
        """What its agent has sampled so far."""
        return read_log(self.folder / f"{name}.log")

    async def order(self, action, /, **arguments):
        """Have something done, whenever the hub listens."""
        return await self.hub.order(action, **arguments)

    async def num_stored(self, name):
        """Samples of a node that the hub has, or knows to be missing."""
        nodes = {each["node"]: each for each in (await self.order("status"))["nodes"]}
        found = nodes.get(name, {"samples": 0, "missing": 0})
        return found["samples"] + found["missing"]

    async def heard(self, names=HOSTS, seconds=120.0):
        """Wait until the hub has what each of them has sampled until now."""
        deadline = time.monotonic() + seconds
        for name in names:
            target = len(self.sampled(name)) + 1
            while await self.num_stored(name) < target:
                assert time.monotonic() < deadline, (self.folder / f"{name}.txt").read_text()
                await asyncio.sleep(0.1)

    def _plug(self, name, *where):
        """The other end of a host's cable."""
        link = f"{self.cluster.bridge}v{self.cluster[name].address.rpartition('.')[2]}"
        subprocess.run(["ip", "link", "set", link, *where], check=True)

    async def cut(self, name, seconds):
        """Nothing gets through to a host, or from it, and nobody is told."""
        self._plug(name, "nomaster")
        try:
            await asyncio.sleep(1)
            before = await self.num_stored(name)
            await asyncio.sleep(seconds - 1)
            self.num_cuts += await self.num_stored(name) == before
        finally:
            self._plug(name, "master", self.cluster.bridge)


@pytest.fixture
def fleet(virtual_cluster, tmp_path):
    """One, of which nothing runs yet."""
    found = Fleet(tmp_path, virtual_cluster(HOSTS))
    with found.stack:
        yield found
        if found.hub.process is not None:
            found.hub.kill()


class Faults(NamedTuple):
    """What happens.

    Attributes:
        num_kills: Of the hub.
        cuts: Host, and for how many seconds it is cut off; gamma's last one is more than its spool
            holds.
    """

    num_kills: int
    cuts: tuple[tuple[str, float], ...]


FAULTS = {
    "seconds": Faults(2, (("alpha", 2.0), ("gamma", 5.0))),
    "minutes": Faults(
        20, (("alpha", 2.0), ("beta", 12.0), ("alpha", 45.0), ("beta", 100.0), ("gamma", 150.0))
    ),
}


@pytest.mark.matrix
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_what_is_exported_is_what_was_sampled(fleet, faults):
    """Up to what the spools hold, and what is missing beyond is counted exactly."""

    async def act():
        fleet.hub.start()
        await fleet.order("start", name="all", every_seconds=0.25)
        for name in HOSTS:
            room = ("--spool-bytes", str(SMALL_SPOOL_BYTES)) if name == "gamma" else ()
            fleet.start_agent(name, "--hub", str(fleet.hub.target), *room)
        await fleet.heard()
        for number in range(faults.num_kills):
            await asyncio.sleep(random.random())  # noqa: S311 - a time
            fleet.hub.kill()
            fleet.hub.start()
            await fleet.heard()
            if number == 0:
                await fleet.order("start", name="some", nodes=["beta", "gamma"])
        for name, seconds in faults.cuts:
            await fleet.cut(name, seconds)
        await fleet.heard()
        told = [await fleet.order("stop", name=name) for name in ("some", "all")]
        told.append(await fleet.order("cut", name="whole", **{"from": 1}))
        return told

    told = asyncio.run(act())
    assert (fleet.hub.num_kills, fleet.num_cuts) == (faults.num_kills, len(faults.cuts))
    fleet.hub.kill()
    some, everything, whole = (list(read_frames(fleet.folder / each["folder"])) for each in told)
    missing = {name: check_stream(fleet, name, whole) for name in HOSTS}
    assert missing["alpha"] == missing["beta"] == []
    check_drops(fleet, missing["gamma"])
    check_sessions(fleet, whole, {"some": some, "all": everything})


def check_stream(fleet, name, whole):
    """Each sample that is stored is the one that was sampled; gives the numbers of the others."""
    sampled = {each.number: each.sample for each in fleet.sampled(name)}
    found = [frame.recorded for frame in whole if frame.node == name]
    assert [each.sequence for each in found] == sorted({each.sequence for each in found})
    assert {each.sequence: each.sample for each in found}.items() <= sampled.items()
    gpus = {
        gpu.temperature_celsius for f in whole if f.node == name for gpu in f.sample.devices[:1]
    }
    assert gpus == {DEGREES[name]}
    kept = {each.sequence for each in found}
    return [
        number for number in sorted(sampled) if number < found[-1].sequence and number not in kept
    ]


def check_drops(fleet, missing):
    """The hub knows each number, and counts them; none was dropped while there was room for it."""
    assert missing
    with stored(fleet.folder) as store:
        ((stream, state),) = ((n, s) for n, s in store.streams().items() if s.node == "gamma")
        known = [n for each in store.missing()[stream] for n in range(each.first, each.last + 1)]
    assert sorted(known) == missing
    assert state.num_missing == len(missing)
    left = [each.bytes_left for each in fleet.sampled("gamma") if each.bytes_left]
    assert SMALL_SPOOL_BYTES / 2 < min(left) <= max(left) <= SMALL_SPOOL_BYTES


def check_sessions(fleet, whole, written):
    """Each is a part of the whole, bit for bit."""
    by_node = {}
    for frame in whole:
        by_node.setdefault(frame.node, []).append(frame.recorded)
    for session in HubIndex(fleet.folder / "hub").sessions():
        if session.name in written:
            found = [(frame.node, frame.recorded) for frame in written[session.name]]
            assert found == slice_of(by_node, session)
            assert {node for node, _ in found} == set(session.nodes or HOSTS)


def test_of_two_hubs_that_announce_themselves_one_has_it_all(fleet, tmp_path):
    """The one that a node has told; when it leaves, the other one takes what comes then."""
    (tmp_path / "other").mkdir()
    other = HubProcess(tmp_path / "other", fleet.cluster.gateway)

    async def act():
        fleet.hub.start()
        await fleet.order("status")
        fleet.start_agent("alpha", "--hub", "auto")
        await fleet.heard(["alpha"])
        other.start()
        log = tmp_path / "alpha.txt"
        fleet.hub.process.terminate()
        assert fleet.hub.process.wait(60) == 0
        deadline = time.monotonic() + 90
        while "takes samples from now on" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            await asyncio.sleep(0.2)
        while not (await order(KEY, other.target, "status", {}))["nodes"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

    try:
        asyncio.run(act())
    finally:
        if other.process is not None:
            other.kill()
