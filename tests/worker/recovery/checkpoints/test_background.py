"""Training does not wait for what is written, and what is promised is written nevertheless."""

import math
import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.data.position import Order, Position
from hetero_hvd.worker.recovery.checkpoints.background import Background, Copy
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica

GENEROUS_SECONDS = 60


class Disk:
    """One that takes as long as the test wants, for each file that is synchronised with it."""

    def __init__(self, monkeypatch):
        self._fsync = os.fsync
        self._is_free = threading.Event()
        self.is_used = threading.Event()
        monkeypatch.setattr(os, "fsync", self._wait)

    def _wait(self, file):
        self.is_used.set()
        assert self._is_free.wait(GENEROUS_SECONDS)
        self._fsync(file)

    @contextmanager
    def busy(self, checkpoints):
        """While this runs, the first checkpoint is being written; then all are."""
        checkpoints.save(1)
        try:
            assert self.is_used.wait(GENEROUS_SECONDS)
            yield
            assert not self._is_free.is_set()
            assert checkpoints.is_writing
        finally:
            self._is_free.set()
        checkpoints.wait()


def number(replica, value):
    """Make a state recognisable."""
    with torch.no_grad():
        replica._parts["model"].weight.fill_(value)


def kept(folder):
    """Steps of the checkpoints that are there."""
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


@pytest.mark.parametrize(
    ("keep", "values", "expected"),
    [
        (2, {2: 0.5}, [1, 2]),
        (2, {2: 0.5, 3: 0.75, 4: 0.875}, [1, 4]),
        (1, {2: 0.5, 3: 0.75}, [3]),
        (2, {2: 0.75, 3: 0.5, 4: math.nan}, [1, 2]),
        (2, {}, [1]),
    ],
    ids=["one waits", "better and better", "only the best is kept", "then worse", "none"],
)
def test_the_best_does_not_wait_for_what_is_written(tmp_path, monkeypatch, keep, values, expected):
    """Its copy does: of the moment at which it was the best."""
    replica = Replica({"model": torch.nn.Linear(2, 1)})
    settings = CheckpointSettings(folder=str(tmp_path), run="one", keep=keep, best="accuracy")
    checkpoints = Checkpoints(settings, replica)
    with Disk(monkeypatch).busy(checkpoints):
        for step, accuracy in values.items():
            number(replica, step)
            if checkpoints.is_best({"accuracy": accuracy}):
                checkpoints.save(step, {"accuracy": accuracy})
            number(replica, -1)
    assert not checkpoints.is_writing
    assert kept(tmp_path) == expected
    fresh = Replica({"model": torch.nn.Linear(2, 1)})
    assert Checkpoints(settings, fresh).load_newest()
    if values:
        assert fresh._parts["model"].weight.unique().tolist() == [max(expected)]


@pytest.mark.parametrize("steps", [(2, 3), (2, 2)], ids=["later", "at the same step"])
def test_the_last_state_is_kept_beside_the_best_that_waited(tmp_path, monkeypatch, steps):
    """The end of the job waits for what is written, what waits for that, and itself."""
    best, last = steps
    told = []
    settings = CheckpointSettings(folder=str(tmp_path), run="one", keep=1, best="-loss")
    replica = Replica({"model": torch.nn.Linear(2, 1)})
    checkpoints = Checkpoints(settings, replica, tell=told.append)
    with Disk(monkeypatch).busy(checkpoints):
        checkpoints.save(best, {"loss": 0.5})
        ending = threading.Thread(target=checkpoints.save, args=(last,))
        ending.start()
    ending.join(GENEROUS_SECONDS)
    checkpoints.wait()
    assert kept(tmp_path) == sorted({best, last})
    assert [(one.step, one.is_best) for one in told[:2]] == [(1, False), (best, True)]


def test_a_better_state_frees_the_memory_of_the_one_that_waits(tmp_path, monkeypatch):
    """So that there are never more than two copies, for which room is left."""
    replica = Replica({"model": torch.nn.Linear(2, 1)})
    settings = CheckpointSettings(folder=str(tmp_path), run="one", best="accuracy")
    checkpoints = Checkpoints(settings, replica)
    waiting = []
    snapshot = replica.snapshot

    def counted(copy):
        waiting.append(checkpoints._background._next)
        return snapshot(copy)

    monkeypatch.setattr(replica, "snapshot", counted)
    with Disk(monkeypatch).busy(checkpoints):
        for step in (2, 3, 4):
            checkpoints.save(step, {"accuracy": float(step)})
    assert waiting == [None] * 4


@pytest.mark.parametrize(("way", "is_copied"), [("begin", True), ("keep", False)])
def test_who_waits_for_the_last_one_copies_nothing(tmp_path, monkeypatch, way, is_copied):
    """Except what has a part of some memory only: all of that would be written."""
    model = torch.nn.Linear(2, 1)
    model.register_buffer("part", torch.arange(100.0)[3:5])
    replica, position, written = Replica({"model": model}), Position(), []
    position.applied_steps = 1
    sizing = SimpleNamespace(reserve=lambda _: None, forget_peak=lambda: None)
    settings = CheckpointSettings(folder=str(tmp_path), run="one")
    keeping = Keeping(replica, position, Order(), sizing, lambda: True, settings=settings)
    put = keeping._checkpoints._background.put
    look = lambda copy: (written.append(copy.state["model"]), put(copy))  # noqa: E731
    monkeypatch.setattr(keeping._checkpoints._background, "put", look)
    getattr(keeping, way)()
    keeping._checkpoints.wait()
    (state,) = written
    assert (state["weight"].data_ptr() != model.weight.data_ptr()) is is_copied
    assert state["part"].untyped_storage().nbytes() == state["part"].nbytes
    digest = replica.checksum()
    number(replica, 7.0)
    assert keeping._checkpoints.load_newest()
    assert replica.checksum() == digest


@pytest.mark.parametrize(("best", "copies"), [("", 1), ("accuracy", 2), ("-loss", 2)])
def test_a_training_leaves_room_for_the_copy_that_may_wait(tmp_path, best, copies):
    """Where evaluations may add one."""
    found = []
    sizing = SimpleNamespace(reserve=found.append, forget_peak=lambda: None)
    replica = Replica({"model": torch.nn.Linear(2, 1)})
    settings = CheckpointSettings(folder=str(tmp_path), run="one", best=best)
    Keeping(replica, Position(), Order(), sizing, lambda: True, settings=settings).prove()
    assert found == [copies * 3 * 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_expected_costs_its_own_copy_only(monkeypatch):
    """What waits behind it is written when somebody waits for it, or with the next one."""
    begun, go_on, written = threading.Event(), threading.Event(), []

    def write(copy):
        if copy.applied_steps == 1:
            begun.set()
            assert go_on.wait(GENEROUS_SECONDS)
            raise LookupError("nobody expected this")
        written.append(copy.applied_steps)

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    background = Background(write)
    background.put(Copy({}, 1, {}))
    assert begun.wait(GENEROUS_SECONDS)
    background.put(Copy({}, 2, {}))
    go_on.set()
    background.wait()
    assert written == [2]
    background.put(Copy({}, 3, {}))
    background.wait()
    assert written == [2, 3]


def test_each_of_many_is_written_once_and_in_order():
    """Also where the thread ends at that very moment."""
    written = []
    background = Background(lambda copy: written.append(copy.applied_steps))
    for step in range(2000):
        background.put(Copy({}, step, {}))
        if step % 3:
            background.wait()
    background.wait()
    assert written == sorted(set(written))
    assert {step for step in range(2000) if step % 3} <= set(written)
