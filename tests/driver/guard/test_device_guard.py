"""What the guard does with samples, a pool of workers and a clock that are all scripted."""

import re
from types import SimpleNamespace

import pytest

from hetero_hvd.config import ClusterConfig, GuardConfig, JobConfig, NodeConfig
from hetero_hvd.driver.guard.device_guard import DeviceGuard
from hetero_hvd.driver.guard.guarded_device import device_of
from hetero_hvd.messages import DeviceSample, GuardReported, NodeSampled, WorkerId
from hetero_hvd.run.event_bus import EventBus

GUARD = GuardConfig(temperature=87, for_seconds=5, return_seconds=4, throttled="off")
TICK_SECONDS = 0.25
HOT, COOL = {"temperature_celsius": 91.0}, {"temperature_celsius": 60.0}


class Pool:
    """Workers that come and go at once."""

    def __init__(self, nodes):
        self.nodes = {node.name: node for node in nodes}
        self.may_restart = True
        self.quarantined = {}
        self.all = [self.slot(name, 0) for name in self.nodes]

    def slot(self, name, index):
        """A slot whose worker trains."""
        return SimpleNamespace(
            worker=WorkerId(name, index),
            node=self.nodes[name],
            ready=SimpleNamespace(device_uuid=""),
            is_wanted=True,
            is_available=True,
        )

    def withdraw(self, slots, reason, _):
        """They are gone."""
        for slot in slots:
            self.quarantined[slot.worker] = (slot.node, reason)
            self.all.remove(slot)

    def is_withdrawn(self, worker):
        """Nobody else lets one go here."""
        return worker in self.quarantined

    def readmit(self, workers):
        """They are back."""
        for worker in workers:
            self.quarantined.pop(worker, None)
            self.all.append(self.slot(worker.node, worker.slot))


class Scene:
    """Nodes a, b, c, ... with one GPU each."""

    def __init__(self, count, *, min_np=1, guard=GUARD):
        nodes = tuple(NodeConfig(name=name, devices=(0,)) for name in "abcdefghijkl"[:count])
        self.cluster = ClusterConfig(job=JobConfig(min_np=min_np), nodes=nodes, guard=guard)
        self.pool = Pool(nodes)
        self.reports = []
        self.published = []
        self.said = []
        self.told = []
        self.now = 100.0
        self.bus = EventBus()
        self.guard = DeviceGuard(
            self.cluster,
            self.pool,
            self.bus,
            say=self.said.append,
            tell=self.told.append,
            clock=lambda: self.now,
        )
        self.bus.subscribe(self.guard.observe, "")
        self.bus.subscribe(self._note, "")

    def _note(self, _, event):
        if isinstance(event, GuardReported):
            self.reports.append((event.what, event.node))
            self.published.append(event)

    def pass_time(self, seconds, silent=(), **figures):
        """So many seconds with a sample of each node at their beginning."""
        for _ in range(seconds):
            for name in self.pool.nodes:
                if name not in silent:
                    gpu = DeviceSample(index=0, uuid=f"GPU-{name}", **figures.get(name, COOL))
                    self.bus.publish(NodeSampled(node=name, machine_id=name, devices=(gpu,)))
            for _ in range(round(1 / TICK_SECONDS)):
                self.now += TICK_SECONDS
                self.guard.look()


def test_a_hot_gpu_is_drained_and_comes_back():
    """Within its time and a sample; one line each, and one notice."""
    scene = Scene(2)
    scene.pass_time(3)
    assert scene.reports == []
    began = scene.now
    while not scene.reports:
        scene.pass_time(1, a=HOT)
    assert scene.now - began <= GUARD.for_seconds + 1
    assert [slot.worker.node for slot in scene.pool.all] == ["b"]
    assert [node.name for node in scene.guard.away()] == ["a"]
    scene.pass_time(20, a=HOT)
    assert scene.reports == [("drained", "a")]
    scene.pass_time(6)
    assert scene.reports == [("drained", "a"), ("returned", "a")]
    assert len(scene.pool.all) == 2
    assert list(scene.guard.away()) == []
    scene.pass_time(20)
    assert len(scene.reports) == len(scene.said) == 2
    (notice,) = scene.told
    assert notice.words == (
        "GPU 0 of a is at 91 °C, and was at 87 °C or more for 5 s: a:0 leaves; it comes back when "
        "the device is well"
    )
    assert scene.said[1] == "guard: GPU 0 of a is well again: a:0 may come back"
    assert (notice.reason, notice.is_new, notice.num_drained) == ("temperature", True, 1)


def test_a_hot_room_is_an_alert():
    """Of eight two may go; the others are told once each, and when it is over."""
    scene = Scene(8)
    scene.pass_time(10, **dict.fromkeys("abcdefgh", HOT))
    whats = [what for what, _ in scene.reports]
    assert (whats.count("drained"), whats.count("refused")) == (2, 6)
    assert len(scene.pool.all) == 6
    assert len(scene.told) == 8
    assert any("2 of 8 devices are drained, and no more than a quarter" in s for s in scene.said)
    scene.reports.clear()
    scene.pass_time(6)
    whats = [what for what, _ in scene.reports]
    assert (whats.count("returned"), whats.count("ended")) == (2, 6)
    assert len(scene.pool.all) == 8
    assert len(scene.told) == 8


def test_who_may_not_go_may_when_others_are_back():
    """It is no new episode, so it is not told outside again."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT, b=HOT)
    assert scene.reports == [("drained", "a"), ("refused", "b")]
    scene.pass_time(8, b=HOT)
    assert scene.reports[2:] == [("returned", "a"), ("drained", "b")]
    assert len(scene.told) == 2


def test_min_np_is_kept_as_it_was_at_the_start_and_as_it_is_now():
    """Whichever is more: Horovod's driver knows the first one only."""
    scene = Scene(2, min_np=2)
    scene.guard.follow(ClusterConfig(nodes=scene.cluster.nodes, guard=GUARD))
    scene.pass_time(9, a=HOT)
    assert scene.reports == [("refused", "a")]
    assert "a:0 should leave, but 1 workers would be left, min_np is 2" in scene.said[0]


def test_who_is_needed_comes_back_though_it_is_hot():
    """Others were lost: better a hot GPU than none."""
    scene = Scene(3, min_np=2)
    scene.pass_time(8, a=HOT)
    assert len(scene.pool.all) == 2
    scene.pool.all.pop()
    scene.pass_time(3, a=HOT)
    assert scene.reports == [("drained", "a"), ("returned", "a")]
    assert len(scene.pool.all) == 2
    scene.pool.all.append(scene.pool.slot("c", 0))
    scene.pass_time(1, a=HOT)
    assert scene.reports[2:] == [("drained", "a")]


def test_silence_changes_nothing_and_is_told_once():
    """Neither a GPU that is drained nor one that is not."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT)
    scene.pass_time(60, silent="ab")
    assert scene.reports == [("drained", "a"), ("silent", "a"), ("silent", "b")]
    assert "GPU 0 of a is not heard of any more: everything stays as it is" in scene.said[1]
    scene.pass_time(1)
    scene.pass_time(60, silent="ab")
    assert [what for what, _ in scene.reports] == ["drained", *["silent"] * 4]


def test_who_is_never_heard_of_is_told_once():
    """Somebody who asks for a guard takes it that there is one."""
    scene = Scene(2)
    scene.pass_time(25, silent="a")
    assert scene.said == []
    scene.pass_time(60, silent="a")
    assert scene.said == ["guard: nothing is heard of the device of a:0: it is not guarded"]


def test_an_error_stays_until_the_entry_changes():
    """The user says that it is well: it begins anew, whatever its counters say."""
    scene = Scene(2)
    scene.pass_time(2)
    lost = {"xids": {79: 1}, **COOL}
    scene.pass_time(600, a=lost)
    assert scene.reports == [("drained", "a")]
    assert "XID 79 (it has fallen off the bus): a:0 leaves; it stays away until" in scene.said[0]
    del scene.pool.quarantined[WorkerId("a", 0)]
    scene.pool.all.append(scene.pool.slot("a", 0))
    scene.pass_time(9, a=lost)
    assert scene.reports == [("drained", "a"), ("returned", "a")]
    scene.pass_time(1, a={"xids": {79: 2}, **COOL})
    assert scene.reports[2:] == [("drained", "a")]


def test_a_further_reason_is_an_episode_of_its_own():
    """Also of a device that is drained already; it does not come back before both are over."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT)
    scene.pass_time(3, a={"xids": {79: 1}, **HOT})
    scene.pass_time(20, a={"xids": {79: 1}, **COOL})
    assert scene.reports == [("drained", "a"), ("drained", "a")]
    assert [notice.reason for notice in scene.told] == ["temperature", "xid"]


def test_an_alert_is_an_alert():
    """Nobody leaves, and its end is told."""
    scene = Scene(2, guard=GuardConfig(xid="alert", return_seconds=3))
    scene.pass_time(2)
    scene.pass_time(8, a={"xids": {79: 1}, **COOL})
    assert scene.reports == [("alerted", "a"), ("ended", "a")]
    assert len(scene.pool.all) == 2


def test_nobody_is_drained_who_could_not_come_back():
    """After the first of several loops a worker is not started again; who is away stays so."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT)
    scene.pool.may_restart = False
    scene.pass_time(9, a=HOT, b=HOT)
    assert scene.reports == [("drained", "a"), ("refused", "b")]


def test_a_node_that_nodes_yaml_has_no_more_is_forgotten():
    """Its device does not count any more, and is not waited for."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT)
    scene.pool.quarantined.clear()
    scene.pass_time(9)
    assert scene.reports == [("drained", "a"), ("ended", "a")]
    assert list(scene.guard.away()) == []
    assert scene.published[-1].num_drained == 0


def test_a_node_that_is_removed_and_added_again_begins_anew():
    """As one whose entry has changed: whoever mends a GPU may take its node out meanwhile."""
    scene = Scene(3)
    scene.pass_time(2)
    lost = {"xids": {79: 1}, **COOL}
    scene.pass_time(2, a=lost)
    scene.pool.quarantined.clear()
    scene.pass_time(2, a=lost)
    scene.pool.all.append(scene.pool.slot("a", 0))
    scene.pass_time(9, a=lost)
    assert scene.reports == [("drained", "a"), ("ended", "a")]
    assert len(scene.pool.all) == 3


@pytest.mark.parametrize("change", ["removed", "no guard"])
def test_who_should_have_gone_counts_no_more(change):
    """Its worker is lost for good, or nobody asks any more: the alert on the metric ends."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT, b=HOT)
    assert scene.reports == [("drained", "a"), ("refused", "b")]
    if change == "removed":
        scene.pool.all.clear()
        scene.guard.look()
    else:
        scene.guard.follow(ClusterConfig(nodes=scene.cluster.nodes))
    (ended,) = (event for event in scene.published if event.what == "ended")
    assert (ended.node, ended.num_refused) == ("b", 0)


def test_who_begins_on_a_device_that_is_drained_leaves_too():
    """Both come back together."""
    scene = Scene(3)
    scene.pass_time(8, a=HOT)
    scene.pool.nodes["a"] = NodeConfig(name="a", devices=(0, 0), slots=2)
    scene.pool.all.append(scene.pool.slot("a", 1))
    scene.pass_time(1, a=HOT)
    assert len(scene.pool.all) == 2
    scene.pass_time(20)
    assert len(scene.pool.all) == 4
    assert scene.pool.quarantined == {}


def test_who_is_well_again_too_late_stays_away():
    """After the first of several loops; nobody is promised otherwise."""
    scene = Scene(2)
    scene.pass_time(8, a=HOT)
    scene.pool.may_restart = False
    scene.pass_time(20)
    assert scene.reports == [("drained", "a"), ("ended", "a")]
    assert scene.said[-1].endswith(
        "is well again, but nobody is started again in this loop over epochs"
    )
    assert scene.published[-1].num_drained == 1


def test_an_alert_that_lasts_may_become_a_drain():
    """Who sees the alert and asks for more need not wait for the next one."""
    scene = Scene(2, guard=GuardConfig(for_seconds=2, throttled="alert"))
    hot = {"throttle_reasons": ("thermal",), **COOL}
    scene.pass_time(5, a=hot)
    config = GuardConfig(for_seconds=2, throttled="drain")
    scene.guard.follow(ClusterConfig(nodes=scene.cluster.nodes, guard=config))
    scene.pass_time(2, a=hot)
    assert scene.reports == [("alerted", "a"), ("drained", "a")]


@pytest.mark.parametrize("xid", ["drain", "alert"])
def test_limits_may_change_while_the_job_runs(xid):
    """Without a guard all come back; with other limits, those whom they leave alone."""
    scene = Scene(2)
    scene.pass_time(2)
    scene.pass_time(3, a={"xids": {79: 1}, **COOL})
    guard = None if xid == "drain" else GuardConfig(xid=xid)
    scene.guard.follow(ClusterConfig(nodes=scene.cluster.nodes, guard=guard))
    scene.pass_time(2, a={"xids": {79: 1}, **COOL})
    assert scene.reports == [("drained", "a"), ("returned", "a")]
    assert len(scene.pool.all) == 2


def test_two_nodes_of_one_machine_are_heard_once():
    """Each tells the same samples, one a moment later: an error is not counted twice."""
    scene = Scene(3)
    for count in (0, 1, 1, 1):
        for name, seen in (("a", count), ("b", 0), ("c", 0)):
            gpus = tuple(
                DeviceSample(index=i, uuid=f"GPU-{i}", xids={94: seen} if seen else {}, **COOL)
                for i in range(3)
            )
            scene.bus.publish(NodeSampled(node=name, machine_id="m", devices=gpus[:1]))
        scene.now += 1
        scene.guard.look()
    whats = [what for what, _ in scene.reports]
    assert whats == ["refused"]
    assert re.search(r"GPU 0 of a, b, c reports XID 94 .* 0 workers would be left", scene.said[0])


SAMPLE = NodeSampled(
    node="a",
    machine_id="m",
    devices=(DeviceSample(index=0, uuid="GPU-x"), DeviceSample(index=3, uuid="GPU-y")),
)
PLACES = {
    "as the worker says": ("GPU-y", (0,), "m/GPU-y"),
    "by the index of nodes.yaml": ("", (3,), "m/GPU-y"),
    "by the UUID of nodes.yaml": ("", ("GPU-x",), "m/GPU-x"),
    "a CPU of nodes.yaml": ("", (), "m/processors"),
    "a CPU, as it has no GPU to tell of": ("", None, "m/processors"),
    "not known yet": (None, None, None),
    "listed, and not known yet": (None, (3,), "m/GPU-y"),
    "none that is sampled": ("GPU-z", (0,), None),
    "a part of a GPU": ("", ("MIG-x",), None),
}


@pytest.mark.parametrize(("uuid", "listed", "expected"), PLACES.values(), ids=PLACES)
def test_which_device_a_worker_has(uuid, listed, expected):
    """What it says of itself comes first, then nodes.yaml."""
    slot = SimpleNamespace(
        worker=WorkerId("a", 0),
        node=NodeConfig(name="a", devices=listed),
        ready=None if uuid is None else SimpleNamespace(device_uuid=uuid),
    )
    assert device_of(slot, SAMPLE) == expected


def test_processors_are_guarded_where_there_is_no_gpu():
    """By the temperature of the hottest sensor."""
    nodes = tuple(NodeConfig(name=name, devices=()) for name in "ab")
    scene = Scene(2, guard=GuardConfig(cpu_temperature=90, for_seconds=2))
    scene.pool = Pool(nodes)
    scene.guard = DeviceGuard(
        scene.cluster,
        scene.pool,
        scene.bus,
        say=scene.said.append,
        tell=scene.told.append,
        clock=lambda: scene.now,
    )
    for _ in range(4):
        for name, celsius in (("a", 95.0), ("b", float("nan"))):
            told = NodeSampled(node=name, machine_id=name, cpu_temperature_celsius=celsius)
            scene.guard.observe(0.0, told)
        scene.now += 1
        scene.guard.look()
    assert scene.reports == [("drained", "a")]
    assert scene.said[0].startswith("guard: processors of a is at 95 °C")
