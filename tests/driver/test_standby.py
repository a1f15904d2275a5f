"""What is done with scripted workers and events; with real ones: `tests/faults/test_standby.py`."""

from types import SimpleNamespace

import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.core.membership.set_aside import NUM_EXCHANGES
from hetero_hvd.driver.placement.standby import Standby
from hetero_hvd.messages import (
    ScriptEnded,
    SetAsideReported,
    StepsTimed,
    StepTiming,
    WorkerExited,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus

NAMES = ("alpha", "beta", "gamma", "delta")
ALPHA, BETA, GAMMA, DELTA = (WorkerId(name, 0) for name in NAMES)
BATCH = 64


class Pool:
    """Workers that come and go at once."""

    def __init__(self):
        self.may_restart = True
        self.withdrawn = {}
        self.all = [self.slot(WorkerId(name, 0)) for name in NAMES]

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
        assert why == "has no samples"
        for slot in slots:
            self.withdrawn[slot.worker] = reason
            self.all.remove(slot)

    def is_withdrawn(self, worker):
        """Whether it may be readmitted."""
        return worker in self.withdrawn

    def readmit(self, workers):
        """They are back."""
        for worker in workers:
            if self.withdrawn.pop(worker, None):
                self.all.append(self.slot(worker))


class Scene:
    """Two workers with samples, and two that have none and hold up each reduction."""

    def __init__(self, *, sharing=None, **job):
        self.nodes = tuple(NodeConfig(name=name) for name in NAMES)
        self.pool = Pool()
        self.said = []
        self.reports = []
        self.bus = EventBus()
        self.standby = Standby(self.cluster(**job), self.pool, self.bus, self.said.append)
        self.bus.subscribe(self.standby.observe, "")
        self.bus.subscribe(self._note, "")
        self.sharing = sharing or {}
        self.num_memberships = self.step = 0
        self.meet()

    def cluster(self, **job):
        """The settings."""
        return ClusterConfig(job=JobConfig(**{"set_aside_seconds": 0.0} | job), nodes=self.nodes)

    def _note(self, _, event):
        if isinstance(event, SetAsideReported):
            self.reports.append((event.what, *(worker.node for worker in event.workers)))

    @property
    def present(self):
        """Names of the nodes whose workers are there."""
        return {slot.worker.node for slot in self.pool.all}

    def meet(self):
        """All who are there are members."""
        self.num_memberships += 1
        self.members = tuple(sorted(slot.worker for slot in self.pool.all))
        event = WorkersJoined(
            rendezvous_id=self.num_memberships,
            workers=self.members,
            applied_steps=self.step,
            global_batch_size=BATCH,
            capacities=(),
            prefetch_steps=0,
            **self.sharing,
        )
        self.bus.publish(event)

    def train(self, num_exchanges=NUM_EXCHANGES + 1):
        """As many exchanges as it takes to decide."""
        is_late = bool({GAMMA, DELTA} & set(self.members))
        for _ in range(num_exchanges):
            self.step += 1
            rows = [self.row(worker, is_late=is_late) for worker in self.members]
            event = StepsTimed(
                rendezvous_id=self.num_memberships,
                step=self.step,
                epoch=0,
                loss=1.0,
                timings=tuple(rows),
                exchange_seconds=0.0,
            )
            self.bus.publish(event)

    def row(self, worker, *, is_late):
        """Of a step of 30 ms, or 10 without those who are late."""
        share = BATCH // 2 if worker in (ALPHA, BETA) else 0
        return StepTiming(
            num_steps=1,
            local_batch_size=share,
            memory_bytes=0.0,
            data_wait_seconds=0.0,
            transfer_seconds=0.0,
            forward_seconds=0.01,
            backward_seconds=0.0,
            comm_wait_seconds=0.02 * (is_late and share > 0),
            optimizer_seconds=0.0,
            step_seconds=0.03 if is_late else 0.01,
        )

    def set_aside(self):
        """Until it is decided."""
        self.train()
        self.meet()
        self.train()
        return self

    def end(self, worker, *, code=-9):
        """The process of a worker ends."""
        event = WorkerExited(worker=worker, host=f"{worker.node}-0", exit_code=code, words="gone")
        self.bus.publish(event)


BOTH = [("tried", "delta", "gamma"), ("set aside", "delta", "gamma")]


def test_they_leave_stay_away_and_come_back():
    """Each in one line; while one is away, the reason is told with it."""
    scene = Scene().set_aside()
    assert scene.reports == BOTH
    assert scene.present == {"alpha", "beta"}
    assert "set aside: delta:0, gamma:0 have no samples" in scene.pool.withdrawn[GAMMA]
    assert scene.said[1] == (
        "step 18: 2 workers by themselves: a step takes 10.0 ms instead of 30.0; delta:0, gamma:0 "
        "are set aside until a worker is lost"
    )
    scene.end(GAMMA)
    assert len(scene.reports) == 2
    scene.end(BETA)
    assert scene.reports == [*BOTH, ("returned", "delta", "gamma")]
    assert scene.said[2] == "step 18: beta:0 is gone: delta:0, gamma:0 come back"
    assert scene.present == set(NAMES)


NOBODY = {
    "never": {"set_aside": "never"},
    "the same shares for all": {"balance": False},
    "all are wanted": {"min_np": 4},
    "shares that the script fixes": {"sharing": {"shares_fixed": True}},
    "shares that vary": {"sharing": {"shares_vary": True}},
}


@pytest.mark.parametrize("settings", NOBODY.values(), ids=NOBODY)
def test_when_nobody_is_set_aside(settings):
    """Where it is not wanted, or shares are no plan's."""
    scene = Scene(**settings)
    scene.train(10 * NUM_EXCHANGES)
    assert scene.reports == []
    assert scene.present == set(NAMES)


def test_who_starts_or_could_not_come_back_is_waited_for():
    """A slot that its node has not free is not waited for."""
    scene = Scene()
    newcomer = scene.pool.slot(WorkerId("omega", 0))
    newcomer.is_available = False
    scene.pool.all.append(newcomer)
    scene.train(40)
    assert scene.reports == []
    scene.pool.may_restart = False
    newcomer.num_refusals = 1
    scene.train(40)
    assert scene.reports == []
    scene.pool.may_restart = True
    scene.train(1)
    assert scene.reports == BOTH[:1]


def test_a_script_that_ends_is_no_loss():
    """Nobody is started for the end of a job."""
    scene = Scene().set_aside()
    scene.pool.find("beta-0").last_word = ScriptEnded(applied_steps=9)
    scene.end(BETA, code=0)
    scene.pool.may_restart = False
    scene.end(ALPHA, code=0)
    scene.standby.follow(scene.cluster(set_aside="never"))
    assert scene.reports == BOTH


def test_who_is_drained_stays_away():
    """Whatever happens to others; of a node whose entry has changed all come back with it."""
    scene = Scene().set_aside()
    del scene.pool.withdrawn[DELTA]
    scene.standby.follow(scene.cluster())
    assert scene.reports == BOTH
    scene.end(BETA)
    assert scene.reports[2:] == [("returned", "gamma")]


def test_an_entry_that_has_changed_brings_all_back():
    """The pool has started the worker already."""
    scene = Scene().set_aside()
    scene.pool.readmit([DELTA])
    scene.standby.follow(scene.cluster())
    assert scene.reports[2:] == [("returned", "gamma")]
    assert scene.said[2] == "step 18: the entry of delta has changed: gamma:0 comes back"


@pytest.mark.parametrize("job", [{"set_aside": "never"}, {"min_np": 3}, {"balance": False}])
def test_settings_are_followed(job):
    """All come back when the settings want it."""
    scene = Scene().set_aside()
    scene.standby.follow(scene.cluster(**job))
    assert scene.reports[2:] == [("returned", "delta", "gamma")]
