"""One supervisor of each node tells what that does, and another one when it is gone."""

import asyncio
import json
import time
from collections import deque
from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers.launch_order import LaunchOrder
from hetero_hvd.driver.workers.node_samples import NodeSamples
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.messages import (
    DeviceSample,
    NodeEquipped,
    NodeSampled,
    OwnerSeen,
    WorkerId,
    event_to_json,
)
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE
from hetero_hvd.run.event_bus import EventBus


class Process:
    """A supervisor that remembers what it was told."""

    def __init__(self):
        self.told = []

    def tell(self, line):
        """An order."""
        self.told.append(line)


def slot(node, index, *, runs=True, **more):
    """A slot of a node."""
    output = SimpleNamespace(samples=deque(maxlen=4))
    process = Process() if runs else None
    config = NodeConfig(name=node, **more)
    return SimpleNamespace(
        worker=WorkerId(node, index), node=config, process=process, output=output
    )


@pytest.fixture
def heard():
    """All that is published, on a bus."""
    bus, events = EventBus(), []
    bus.subscribe(lambda _, event: events.append(event), "")
    return SimpleNamespace(bus=bus, events=events)


def test_one_supervisor_of_each_node_is_asked_once(heard):
    """When it is gone, or runs anew, another one, or the new one."""
    slots = [slot("a", 0, runs=False), slot("a", 1), slot("a", 2), slot("b", 0)]
    samples = NodeSamples(lambda: slots, heard.bus, seconds=1)
    for now in range(3):
        samples.look(now)
    told = [[] if s.process is None else s.process.told for s in slots]
    assert told == [[], ["SAMPLE 1"], [], ["SAMPLE 1"]]
    slots[1].process = None
    slots[3].process = Process()
    samples.look(4)
    assert slots[2].process.told == ["SAMPLE 1"]
    assert slots[3].process.told == ["SAMPLE 1"]


def test_an_owner_is_asked_for_and_heard_of_once(heard):
    """Who watches after another one is told what that has seen; of nodes without guests nothing."""
    slots = [slot("a", 0, guest=True, guest_idle_seconds=5, slots=1), slot("b", 0)]
    samples = NodeSamples(lambda: slots, heard.bus, seconds=0)
    seen = event_to_json(OwnerSeen(node="root", words="a file is there"))
    for one in slots:
        one.output.samples.extend([seen, seen])
    samples.look(0.0)
    assert heard.events == [OwnerSeen(node="a", words="a file is there")]
    slots[0].process = Process()
    samples.look(1.0)
    (order,) = slots[0].process.told
    assert json.loads(order.removeprefix("OWNER ")) == {
        "file": "/run/lock/hetero_hvd-owner",
        "processors": 0.5,
        "idle_seconds": 5,
        "gpus": [0],
        "is_here": True,
    }
    assert (slots[1].process.told, samples.num_refused) == ([], 2)


def test_nobody_is_asked_where_nothing_is_wanted(heard):
    """`sample_seconds: 0`."""
    slots = [slot("a", 0)]
    slots[0].output.samples.append(event_to_json(NodeSampled()))
    NodeSamples(lambda: slots, heard.bus, seconds=0).look(0)
    assert (slots[0].process.told, heard.events) == ([], [])


def test_samples_have_the_name_of_the_node_that_told(heard):
    """Whatever is in them; two nodes that are one machine are told apart."""
    slots = [slot("a", 0), slot("b", 0)]
    samples = NodeSamples(lambda: slots, heard.bus, seconds=1)
    for one in slots:
        told = NodeSampled(node="root", machine_id="m", devices=(DeviceSample(uuid="u"),))
        one.output.samples.append(event_to_json(told))
    samples.look(0.0)
    assert [(event.node, event.machine_id) for event in heard.events] == [("a", "m"), ("b", "m")]


RATES = {1: [0.0, 0.6, 1.2, 2.0], 10: [0.0]}


@pytest.mark.parametrize(("seconds", "expected"), RATES.items())
def test_who_tells_too_often_is_not_listened_to(heard, seconds, expected):
    """A script can print as many samples as it wants."""
    one = slot("a", 0)
    samples = NodeSamples(lambda: [one], heard.bus, seconds=seconds)
    for now in (0.0, 0.2, 0.4, 0.6, 0.9, 1.2, 1.6, 2.0):
        one.output.samples.extend([event_to_json(NodeSampled(load=now))] * 2)
        samples.look(now)
    assert [event.load for event in heard.events] == expected


def test_what_a_node_is_made_of_is_told_once(heard):
    """Again when it has changed."""
    one = slot("a", 0)
    samples = NodeSamples(lambda: [one], heard.bus, seconds=1)
    for num_cpus in (2, 2, 4):
        one.output.samples.append(event_to_json(NodeEquipped(num_cpus=num_cpus)))
        samples.look(0.0)
    assert [event.num_cpus for event in heard.events] == [2, 4]


def test_what_is_no_sample_is_counted(heard):
    """And nothing else happens."""
    one = slot("a", 0)
    samples = NodeSamples(lambda: [one], heard.bus, seconds=1)
    one.output.samples.extend([b"", b"{}", b'{"type":"Finished"}', b"[" * 100_000])
    samples.look(0.0)
    assert (samples.num_refused, heard.events) == (4, [])


@pytest.mark.process
def test_two_nodes_of_one_machine_share_a_sampler_and_hand_it_over(heard, tmp_path, monkeypatch):
    """Real supervisors: one is killed, with the sampler if it has it, and the other one goes on."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    order = LaunchOrder(command=("sleep", "60"), environment={}, directory="/", gpu=None)

    async def scenario():
        console, slots = Console(), []
        for name in ("alpha", "beta"):
            output = WorkerOutput(console, tmp_path / f"{name}.log", f"[{name}] ")
            node = NodeConfig(name=name)
            process = await WorkerProcess.start(node, order, output)
            worker = WorkerId(name, 0)
            one = SimpleNamespace(worker=worker, node=node, process=process, output=output)
            slots.append(one)
        samples = NodeSamples(lambda: slots, heard.bus, seconds=1)

        async def heard_of(node, count):
            async with asyncio.timeout(20):
                while sum(event.node == node for event in heard.events) < count:
                    samples.look(time.monotonic())
                    await asyncio.sleep(0.05)

        await heard_of("alpha", 2)  # what it is made of, and a sample
        await heard_of("beta", 2)
        before = sum(event.node == "beta" for event in heard.events)
        gone, slots[0].process = slots[0].process, None
        gone.kill()
        await gone.exited
        await heard_of("beta", before + 3)
        slots[1].process.kill()
        await slots[1].process.exited
        console.close()

    asyncio.run(scenario())
    made_of = [event.node for event in heard.events if isinstance(event, NodeEquipped)]
    assert set(made_of) == {"alpha", "beta"}
    assert len({event.machine_id for event in heard.events}) == 1
