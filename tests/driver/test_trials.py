"""Trials of placements with scripted workers; with real ones: `tests/faults/test_trial.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.core.advice.placement_trial import TrialSettings
from hetero_hvd.driver.placement.trials import Trials
from hetero_hvd.messages import (
    NodeSampled,
    NodesPriced,
    ScriptEnded,
    SetAsideReported,
    StepsTimed,
    StepTiming,
    TrialReported,
    WorkerExited,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records import run_files
from hetero_hvd.run.records.placements import NAME
from tests.module_clock import give_clock

ALPHA, BETA, GAMMA = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
BATCH = 64
DELTA = WorkerId("delta", 0)
SECONDS = {ALPHA: 0.001, BETA: 0.002, GAMMA: 0.03, DELTA: 0.001}
"""Of each, for a sample; delta is not there at first."""

LINK_SECONDS = 0.05
"""That a reduction takes in which gamma takes part."""


class Pool:
    """Workers that come and go at once; a process that is let go ends when the test says so."""

    def __init__(self):
        self.may_restart = True
        self.withdrawn = set()
        self.all = [self.slot(worker) for worker in (ALPHA, BETA, GAMMA)]

    def slot(self, worker):
        """One whose worker trains."""
        return SimpleNamespace(
            worker=worker,
            host=f"{worker.node}-0",
            is_wanted=True,
            is_available=True,
            num_refusals=0,
            last_word=None,
        )

    def find(self, host):
        """The slot of a worker that runs."""
        return next((slot for slot in self.all if slot.host == host), None)

    def withdraw(self, slots, reason, why):
        """They are gone."""
        for slot in slots:
            assert why == f"is {reason}"
            self.withdrawn.add(slot.worker)
            self.all.remove(slot)

    def is_withdrawn(self, worker):
        """Whether it may be readmitted."""
        return worker in self.withdrawn

    def readmit(self, workers):
        """They are back."""
        for worker in filter(self.is_withdrawn, list(workers)):
            self.withdrawn.remove(worker)
            self.all.append(self.slot(worker))


class Scene:
    """A job of three nodes, of which gamma holds up the others."""

    def __init__(self, folder, max_np=None, **settings):
        self.pool = Pool()
        self.max_np = max_np
        self.late = set()
        self.said = []
        self.events = []
        self.bus = EventBus()
        self.trials = Trials(
            TrialSettings(**settings),
            JobConfig(max_np=max_np),
            self.pool,
            self.bus,
            say=self.said.append,
            folder=folder / "run",
        )
        self.bus.subscribe(lambda _, event: self.events.append(event), "")
        self.num_memberships = self.step = 0
        self.bus.publish(NodesPriced(per_hour={"alpha": 1.0, "beta": 1.0, "gamma": 1.0}))
        self.meet()

    @property
    def present(self):
        """Names of the nodes whose workers are there."""
        return {slot.worker.node for slot in self.pool.all}

    def meet(self):
        """All who are there are members, as far as there is place."""
        self.num_memberships += 1
        there = {slot.worker for slot in self.pool.all} - self.late
        self.members = tuple(sorted(there))[: self.max_np]
        event = WorkersJoined(
            rendezvous_id=self.num_memberships,
            workers=self.members,
            applied_steps=self.step,
            global_batch_size=BATCH,
            capacities=(-1,) * len(self.members),
            prefetch_steps=0,
            model="model",
        )
        self.bus.publish(event)

    def train(self, num_exchanges=1):
        """So many exchanges of ten steps; who left or came back is in the next membership."""
        for _ in range(num_exchanges):
            if set(self.members) != {slot.worker for slot in self.pool.all} - self.late and (
                len(self.pool.all) < len(self.members) or len(self.members) != self.max_np
            ):
                self.meet()
            self.step += 10
            rates = {worker: 1 / SECONDS[worker] for worker in self.members}
            shares = [round(BATCH * rate / sum(rates.values())) for rate in rates.values()]
            shares[0] += BATCH - sum(shares)
            link = LINK_SECONDS * (GAMMA in self.members and len(self.members) > 1)
            busy = [SECONDS[w] * share for w, share in zip(self.members, shares, strict=True)]
            rows = tuple(
                StepTiming(
                    num_steps=10,
                    local_batch_size=share,
                    memory_bytes=0.0,
                    data_wait_seconds=0.0,
                    transfer_seconds=0.0,
                    forward_seconds=own,
                    backward_seconds=0.0,
                    comm_wait_seconds=link + max(busy) - own,
                    optimizer_seconds=0.0,
                    step_seconds=link + max(busy),
                )
                for share, own in zip(shares, busy, strict=True)
            )
            event = StepsTimed(
                rendezvous_id=self.num_memberships,
                step=self.step,
                epoch=0,
                loss=1.0,
                timings=rows,
                exchange_seconds=0.0,
            )
            self.bus.publish(event)
            if self.trials.is_over:
                break

    def end(self, worker, *, is_wanted=True, last_word=None):
        """The process of a worker ends."""
        slot = self.pool.find(f"{worker.node}-0")
        if slot is None:
            slot = self.pool.slot(worker)
            self.pool.all.append(slot)
        slot.is_wanted = is_wanted
        slot.last_word = last_word
        event = WorkerExited(worker=worker, host=slot.host, exit_code=-9, words="gone")
        self.bus.publish(event)
        if not is_wanted:
            self.pool.all.remove(slot)

    def until_left_out(self):
        """All together are measured, and gamma is left out for the first time."""
        while GAMMA.node in self.present:
            self.train()
        return self

    @property
    def report(self):
        """What was published, once."""
        (found,) = [event for event in self.events if isinstance(event, TrialReported)]
        return found


def test_all_is_measured_told_kept_and_put_back(tmp_path):
    """As a table; what has left is told as what is set aside."""
    scene = Scene(tmp_path)
    scene.train(300)
    assert scene.report.is_complete
    assert (tmp_path / "placements.json").exists()
    assert scene.report.words.endswith("that were measured: alpha, beta")
    assert scene.present == {"alpha", "beta", "gamma"}
    assert any(line.startswith("alpha beta ") and "best" in line for line in scene.said)
    asides = [event for event in scene.events if isinstance(event, SetAsideReported)]
    assert {event.what for event in asides} == {"tried", "returned"}
    best = scene.report.placements[0]
    assert best.nodes == ("alpha", "beta")
    assert best.cost_per_sample == pytest.approx(2 / 3600 / best.samples_per_second[0], rel=0.05)


@pytest.mark.parametrize("then", ["goes on", "ends"])
def test_the_loop_waits_for_no_other_job(tmp_path, monkeypatch, then):
    """What was found is kept when the other one has changed the file, at the latest at the end."""
    scene = Scene(tmp_path)
    slept = []
    give_clock(monkeypatch, run_files, sleep=slept.append)

    def meanwhile(content):
        scene.train(300)
        scene.trials.act()
        assert scene.report.is_complete
        assert not slept
        return content or b"[]"

    run_files.change_file(tmp_path / NAME, meanwhile)
    assert (tmp_path / NAME).read_bytes() == b"[]"
    scene.trials.act() if then == "goes on" else scene.trials.close()
    kept = (tmp_path / NAME).read_bytes()
    assert b"alpha" in kept
    (tmp_path / NAME).unlink()
    scene.trials.close()
    assert not (tmp_path / NAME).exists()


def drained(scene):
    """A user drains who is left out: it stays away."""
    scene.until_left_out()
    scene.pool.withdrawn.remove(GAMMA)
    scene.train(300)
    return {"alpha", "beta"}


def newcomer(scene):
    """A node that comes meanwhile waits until the trial is over."""
    scene.until_left_out()
    scene.train()
    scene.pool.all.append(scene.pool.slot(DELTA))
    scene.train()
    assert "delta" not in scene.present
    scene.train(300)
    return {"alpha", "beta", "gamma", "delta"}


def left_as_it_should(scene):
    """The process of who is left out ends: that is no loss."""
    scene.until_left_out()
    scene.end(GAMMA, is_wanted=False)
    assert not any("void" in line for line in scene.said)
    scene.train(300)
    return {"alpha", "beta", "gamma"}


def lost(scene):
    """One that was to stay dies: all come back at once."""
    scene.until_left_out()
    scene.train()
    scene.end(BETA)
    assert scene.present == {"alpha", "beta", "gamma"}
    assert any(line == "trial: alpha, beta: void, beta:0 is gone" for line in scene.said)
    scene.train(300)
    return {"alpha", "beta", "gamma"}


def script_ended(scene):
    """Its script is at its end: that is no loss."""
    scene.until_left_out()
    scene.train()
    scene.end(BETA, last_word=ScriptEnded(applied_steps=9))
    assert not any("void" in line for line in scene.said)
    scene.train(300)
    return {"alpha", "beta", "gamma"}


def training_ended(scene):
    """Who is away cannot come back any more; what was measured is told."""
    scene.until_left_out()
    scene.pool.may_restart = False
    scene.train(20)
    assert not scene.trials.is_over
    return {"alpha", "beta"}


def called_off(_scene):
    """Before anything was measured."""
    return {"alpha", "beta", "gamma"}


ENDINGS = {
    drained: "best of",
    newcomer: "best of",
    left_as_it_should: "best of",
    lost: "best of",
    script_ended: "best of",
    training_ended: "the job has ended before the trial was over",
    called_off: "needs a script that trains by hetero_hvd.Trainer",
}


@pytest.mark.parametrize("act", ENDINGS, ids=lambda act: act.__name__)
def test_whatever_happens_meanwhile_the_job_keeps_its_nodes(act, tmp_path):
    """And the trial says once what it has found."""
    words = ENDINGS[act]
    scene = Scene(tmp_path)
    present = act(scene)
    scene.trials.close()
    scene.trials.close()
    assert words in scene.report.words
    assert scene.present == present


def test_with_max_np_those_who_wait_for_a_place_get_none_meanwhile(tmp_path):
    """Else they would take the place of who is left out."""
    scene = Scene(tmp_path, max_np=2)
    scene.train(300)
    scene.trials.close()
    assert all("gamma" not in each.nodes for each in scene.report.placements)
    assert scene.present == {"alpha", "beta", "gamma"}


def test_by_energy_a_visit_waits_for_a_sample_of_power(tmp_path):
    """Which comes each second; steps may be shorter than that."""
    scene = Scene(tmp_path, goal="energy")
    while not scene.trials.is_over and scene.step < 10_000:
        scene.train(11)
        for name in ("alpha", "beta", "gamma"):
            scene.bus.publish(NodeSampled(node=name, package_power_watts=100.0))
    assert scene.report.words.startswith("best of")
    assert all(each.joules_per_sample > 0 for each in scene.report.placements if each.rounds)


def test_one_node_waits_for_others_that_may_come(tmp_path):
    """Other jobs have their slots at first; then all is measured."""
    scene = Scene(tmp_path)
    scene.late = {BETA, GAMMA}
    scene.meet()
    scene.train(20)
    assert scene.said == ["trial: begins when one of beta, gamma trains, too"]
    scene.late = set()
    scene.train(300)
    assert scene.report.is_complete
    assert len(scene.report.placements) > 1


def test_one_node_that_is_all_that_may_train_has_nothing_to_try(tmp_path):
    """Whoever else is there."""
    scene = Scene(tmp_path, max_np=1)
    scene.train(3)
    assert scene.report.words == "there is but one node: nothing to try"
