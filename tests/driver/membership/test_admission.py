"""Who does not fit or reach the others is refused; clocks that are off are told.

Another version is put in front of the real one by a folder with its metadata, another clock by a
library that is loaded before the C library.
"""

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import pytest

from hetero_hvd.config import JobConfig, NodeConfig
from hetero_hvd.driver.membership import admission as module
from hetero_hvd.driver.membership import route_checks
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.errors import TryAgainError
from hetero_hvd.messages import (
    GlooAddress,
    Ready,
    RouteAsked,
    RouteTold,
    StallReported,
    WorkerId,
)
from hetero_hvd.run.event_bus import EventBus
from tests.driver.conftest import write_nodes
from tests.driver.membership.test_route_checks import parts
from tests.fake_clock import library as fake_clock
from tests.module_clock import give_clock


def node(name, **environment):
    """A node's name, and further entries of nodes.yaml."""
    return f"{name}, env: {json.dumps(environment)}" if environment else name


def other_version(folder, package, version):
    """The environment of a node on which a package says that it is of another version."""
    metadata = folder / f"{package}-{version}" / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    own = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(metadata.parents[1]), *own.split(os.pathsep)])}


@pytest.mark.process
def test_a_horovod_that_does_not_fit_stops_the_job_before_it_starts(start_job, tmp_path):
    """Exit code 2, the table, and the node with what it has; no step was taken."""
    odd = node("beta", **other_version(tmp_path, "horovod", "0.27.0"))
    job = start_job(names=("alpha", odd, "gamma"))
    assert job.wait() == 2
    (row,) = [line for line in job.output if line.startswith("hetero-hvd: beta:0 ")]
    assert row.split()[3] == "0.27.0"
    reason = "cannot work: beta:0: horovod 0.27.0, others 0.28.1"
    assert any(reason in line for line in job.output)
    assert job.summary()["steps"] == 0


@pytest.mark.process
def test_a_newcomer_that_does_not_fit_is_refused_and_the_others_go_on(start_job, tmp_path):
    """It is let go once, with the reason; the job ends well without it."""
    script, names = ("1000", "until-told"), ("alpha", "gamma")
    job = start_job("--progress-seconds", "0.2", names=names, script=script)
    job.wait_for(r"step [1-9]\d*  epoch")
    odd = node("beta", **other_version(tmp_path, "horovod", "0.27.0"))
    write_nodes(job.nodes_file, ("alpha", "gamma", odd))
    job.wait_for(r"beta:0 is refused \(cannot work: beta:0: horovod 0\.27\.0, others 0\.28\.1")
    assert "horovod 0.27.0" in job.status()["quarantined"]["beta:0"]
    (job.folder / "end").touch()
    assert job.wait() == 0
    summary = job.summary()
    assert summary["steps"] > 0
    assert summary["steps"] % 8 == 0  # whole epochs
    assert len([line for line in job.output if "is refused" in line]) == 1
    assert not any("3 workers train together" in line for line in job.output)


@pytest.mark.process
def test_another_torch_and_a_wrong_clock_are_told_and_train(start_job, tmp_path):
    """A warning with the table for the one; for the other how far it is off, to milliseconds."""
    clock = fake_clock.environment(fake_clock.build(tmp_path))
    odd = node("beta", **clock, **other_version(tmp_path, "torch", "2.1.0"))
    job = start_job(names=("alpha", odd))
    job.wait_for(r"the nodes' software differs:")
    job.wait_for(r"note: beta:0: torch 2\.1\.0, others 2\.\S+: results differ in the last bits")
    assert job.wait() == 0
    assert job.summary()["replicas_equal"] is True
    told = [line for line in job.output if "clock" in line]
    assert [line.split(";")[0] for line in told] == [
        "the clock of node beta is 100.0 s ahead of the driver's"
    ]
    with closing(sqlite3.connect(job.folder / "out" / "run.sqlite")) as records, records:
        rows = records.execute("SELECT body FROM events WHERE kind = 'ClockMeasured'").fetchall()
    records.close()
    found = {tuple(event["worker"]): event for event in (json.loads(body) for (body,) in rows)}
    for worker, offset in ((("alpha", 0), 0.0), (("beta", 0), 100.0)):
        event = found[worker]
        assert abs(event["offset_seconds"] - offset) <= event["uncertainty_seconds"] + 1e-5
        assert event["uncertainty_seconds"] < 1.0


class Team:
    """An admission whose workers do what a table of broken routes says; the clock is ours."""

    def __init__(self, monkeypatch, names, **job):
        self.now_seconds = 1000.0
        give_clock(monkeypatch, module, monotonic=lambda: self.now_seconds)
        self.blocked = set()
        self.asked = []
        self.said = []
        self.refused = Counter()
        self.all = tuple(map(self._slot, names))
        self.has_started = False
        self.unmet_seconds = 0.0
        self.bus = EventBus()
        channels = SimpleNamespace(send=lambda host, word: self.asked.append((host, word)))
        console = SimpleNamespace(say=self.said.append)
        self.admission = module.Admission(
            JobConfig(**job), self, self, channels, bus=self.bus, console=console
        )
        for number, slot in enumerate(self.all):
            self.admission.ready(slot, self._ready(slot, number))
        self.answer()

    def _slot(self, name):
        node = NodeConfig(name=name, slots=1, devices=())
        process = SimpleNamespace(kill=lambda: None)
        return Slot(worker=WorkerId(name, 0), node=node, output=None, host=name, process=process)

    def _ready(self, slot, number):
        gloo = GlooAddress(address=f"10.0.0.{number}", port=1, greeting="x", ports=(1, 2))
        name = slot.host
        return Ready(
            worker=slot.worker,
            host=name,
            interface="eth0",
            pid=1,
            versions={},
            machine_id=name,
            gloo=gloo,
        )

    @property
    def present(self):
        """All, as a process takes its time to end."""
        return list(self.all)

    def became_ready(self, slot, ready):
        """As in `WorkerPool`."""
        slot.ready = ready

    def refuse(self, slot, _, *, may_return=False):
        """As in `WorkerPool`."""
        assert may_return
        self.refused[slot.host] += 1

    def lost(self, host):
        """As in `Membership`."""

    def answer(self):
        """All say what they were asked, and the driver looks after each word."""
        asked, self.asked = self.asked, []
        for host, word in asked:
            if (target := getattr(word, "host", None)) is not None:
                fault = "dropped" if (host, target) in self.blocked else ""
                slot = next(slot for slot in self.all if slot.host == host)
                self.admission.answered(slot, RouteTold(host=target, fault=fault))
                self.admission.look()

    def stand_still(self):
        """Nobody steps: routes are tried twice, and those who were let go are not gone yet."""
        self.has_started = True
        self.bus.publish(
            StallReported(step=1, is_stalled=True, seconds=10.0, workers=(), phases=())
        )
        for _ in range(3):
            for seconds in (0.0, route_checks.SECOND_TRY_SECONDS):
                self.now_seconds += seconds
                self.admission.look()
                self.answer()
            self.now_seconds += route_checks.AGAIN_SECONDS


CUTS = {
    "in halves": (parts("abc", "def"), 2, "def"),
    "in three": (parts("ab", "cd", "ef"), 2, "cdef"),
    "one pair": (parts("a", "d"), 2, "d"),
    "too few would be left": (parts("abc", "def"), 4, ""),
}


@pytest.mark.parametrize(("blocked", "min_np", "out"), CUTS.values(), ids=CUTS)
def test_a_cut_lets_one_side_go_once(monkeypatch, blocked, min_np, out):
    """Whatever the order of the answers, and as long as their processes take to end."""
    team = Team(monkeypatch, "abcdef", min_np=min_np)
    assert all(slot.ready for slot in team.all)
    team.blocked = blocked
    team.stand_still()
    assert team.refused == dict.fromkeys(out, 1)
    assert len(team.said) == (not out)


MEETINGS = {
    "they have met": (0.0, True),
    "they get on": (0.5 * module.UNMET_SECONDS, False),
    "they do not get on": (1.5 * module.UNMET_SECONDS, True),
}


@pytest.mark.parametrize(("unmet_seconds", "are_tried"), MEETINGS.values(), ids=MEETINGS)
def test_many_that_need_long_to_meet_are_left_alone(monkeypatch, unmet_seconds, are_tried):
    """Nobody steps meanwhile; to ask all of them for all routes would make it later still."""
    team = Team(monkeypatch, "abcdef")
    team.unmet_seconds = unmet_seconds
    team.bus.publish(StallReported(step=1, is_stalled=True, seconds=10.0, workers=(), phases=()))
    team.admission.look()
    assert sum(isinstance(word, RouteAsked) for _, word in team.asked) == 15 * are_tried


STARTS = {"enough are left": (3, False), "too few are left": (4, True)}


@pytest.mark.parametrize(("min_np", "ends"), STARTS.values(), ids=STARTS)
def test_too_few_that_reach_each_other_may_be_enough_another_time(monkeypatch, min_np, ends):
    """A network may be mended without a change of what the user has given."""
    team = Team(monkeypatch, "abcdef", min_np=min_np)
    team.blocked = parts("abc", "def")
    team.stand_still()
    team.refused.clear()
    if ends:
        with pytest.raises(TryAgainError, match="3 workers reach each other, min_np is 4"):
            team.admission.check_start()
    else:
        assert not team.admission.check_start()
    assert team.refused == ({} if ends else dict.fromkeys("def", 1))
