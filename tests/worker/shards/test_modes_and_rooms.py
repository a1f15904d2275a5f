"""Whether the state is cut, and what follows where memory is short: each mode with each room."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from rendezvous import Hub, run_together
from sharded_script import give_room
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.messages import StateDivided
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.series import open_checkpoints
from hetero_hvd.worker.shards import memory_pause

EPOCHS, STEPS, BATCH = 2, 4, 6
CHANGED_AT = 3
NUM_BLOCKS = 10

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
X = torch.randn(STEPS * BATCH, 16)


class Case(NamedTuple):
    """Rooms of three workers, and of one who comes later.

    Attributes:
        rooms: In blocks; the state has ten.
        is_cut: Whether `auto` has cut it at the end.
        comes: When another one with a room of `late` comes: `joins` between two steps, `pauses`
            once the others wait for it; "": not at all.
        late: See there.
        loses: Whether the first worker is lost under way.
        shrinks: Whether none of the first ones is measured to have any room by then.
    """

    rooms: tuple[int, ...]
    is_cut: bool
    comes: str = ""
    late: int = 0
    loses: bool = False
    shrinks: bool = False


CASES = {
    "fits": Case((24, 12, 10), is_cut=False),
    "fits only cut": Case((9, 8, 6), is_cut=True),
    "fits one alone": Case((2, 10, 3), is_cut=True),
    "fits not at all": Case((6, 5, 4), is_cut=True, comes="pauses", late=9),
    "a joiner that fits": Case((24, 12, 10), is_cut=False, comes="joins", late=10),
    "a joiner that is small": Case((24, 12, 10), is_cut=True, comes="joins", late=3),
    "a joiner where others are full": Case(
        (24, 12, 10), is_cut=True, comes="joins", late=3, shrinks=True
    ),
    "a loss makes it short": Case((9, 8, 6), is_cut=True, comes="pauses", late=8, loses=True),
    "a loss of a whole one": Case((24, 12, 10), is_cut=False, loses=True),
}


class Job:
    """Workers as threads.

    Args:
        mode: `shard_optimizer`.
        case: Their rooms.
        folder: For checkpoints; None: there are none.
        waits: Seconds for others, at most.
        faults: Further ones.

    Attributes:
        epochs: To train.
        snapshot: To go on from.
    """

    snapshot = None
    epochs = EPOCHS

    def __init__(self, mode, case, *, folder=None, waits=20.0, faults=()):
        self.mode = mode
        self.case = case
        self.folder = folder
        self.waits = waits
        faults = [*faults, (0, "totals.0", CHANGED_AT + 1, "sent")] if case.loses else faults
        self.hub = Hub(4 if case.comes else 3, faults, late={3} if case.comes else ())
        self.told = []
        self.contexts = []
        self.scripts = []

    def run(self):
        """Train; gives who is left."""
        return run_together(self.hub, self.train)

    def admit(self):
        """The one who is late comes, and the others hear of it."""
        for script in self.scripts if self.case.shrinks and self.mode == "auto" else ():
            give_room(script.shards, 0)
        self.hub.admit(3)
        for context in self.contexts:
            context.reset_requested = True

    def tell(self, message):
        """As the driver would hear it."""
        if not isinstance(message, StateDivided):
            return
        self.told.append(message)
        if message.is_short and self.case.comes == "pauses":
            self.admit()

    def train(self, context):
        """What each worker does."""
        context.tell = self.tell
        context.reset_done = lambda _: setattr(context, "reset_requested", False)
        self.contexts.append(context)
        script = Script(self, context)
        self.scripts.append(script)
        return script.run()


class Script:
    """Trains with AdamW."""

    def __init__(self, job, context):
        self.job = job
        self.rank = context.settings.worker.slot
        self.model = copy.deepcopy(INITIAL)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.trainer = Trainer(
            self.model,
            self.optimizer,
            DataLoader(TensorDataset(X), BATCH, shuffle=True),
            after_step=self.after_step,
            shard_optimizer=job.mode,
        )
        state = self.trainer._state
        state._context = context
        state._pause._limit_seconds = job.waits
        self.shards = state._kept.shards
        if self.shards is not None:
            give_room(self.shards, (*job.case.rooms, job.case.late)[self.rank])
        if job.snapshot is not None:
            state.replica.resume(copy.deepcopy(job.snapshot))
            state._has_loaded = True
        if job.folder is not None:
            settings = CheckpointSettings(folder=str(job.folder), run="r", every_seconds=1e6)
            state._kept._checkpoints = open_checkpoints(settings, state.replica, 1, lambda _: None)

    def after_step(self):
        """Somebody may come."""
        is_due = self.rank == 0 and self.trainer.applied_steps == CHANGED_AT
        if is_due and self.job.case.comes == "joins":
            self.job.admit()

    def run(self):
        """All epochs."""
        for _ in self.trainer.epochs(self.job.epochs):
            for (x,) in self.trainer.batches():
                self.trainer.step(lambda x: (self.model(x) - x).square().mean(), x)
        return self

    @property
    def values(self):
        """Of the model."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    @property
    def num_held(self):
        """Blocks of the state in parts; None: it is whole."""
        if self.shards is None or not self.shards.is_cut:
            return None
        return sum(span.length for span in self.shards.slices.spans())


@pytest.fixture(autouse=True)
def _others_may_come(monkeypatch):
    """As under our driver; and they are looked for often."""
    monkeypatch.setattr(memory_pause, "is_elastic", lambda: True)
    monkeypatch.setattr(memory_pause, "ASK_SECONDS", 0.01)


@pytest.fixture(scope="module")
def undisturbed():
    """The model without parts."""
    return Job(False, CASES["fits"]).run()[0].values


@pytest.mark.parametrize("mode", [True, "auto", False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_mode_with_each_room(undisturbed, mode, case):
    """All train as without parts; it is cut, and paused for, only where that has to be."""
    job = Job(mode, case if mode else case._replace(comes=case.comes.replace("pauses", "")))
    scripts = job.run()
    assert job.hub.fired == job.hub.faults
    assert {script.trainer.applied_steps for script in scripts} == {EPOCHS * STEPS}
    for script in scripts:
        assert script.values == pytest.approx(undisturbed, abs=1e-6)
    is_cut = {True: True, "auto": case.is_cut, False: False}[mode]
    held = [script.num_held for script in scripts]
    if is_cut:
        assert sum(held) >= NUM_BLOCKS * (1 if 0 in held else 2)
        assert not any(script.optimizer.state for script in scripts)
    else:
        assert set(held) == {None}
        assert all(len(script.optimizer.state) == 4 for script in scripts)
    is_short = [message.words for message in job.told if message.is_short]
    assert len(is_short) == (bool(mode) and case.comes == "pauses")
    assert all("paused: " in words and "MiB" in words for words in is_short)
    told = [message.words for message in job.told if not message.is_short]
    assert any("each part on two workers: node:" in words for words in told) == (
        is_cut and case.rooms[1:] != (10, 3)
    )
    for kind, words in (("whole on each worker", not case.is_cut), ("cut into parts", case.is_cut)):
        if mode == "auto" and case.comes != "joins":
            assert sum(kind in each for each in told) == words
    assert bool(told) == bool(mode)


WHOLE = [("gradients.0.0", 3), ("totals.0", 3), ("totals.0", EPOCHS * STEPS), ("reports", 2)]
JOINING = [("reports", 3), ("reports", 4), ("plan", 2), ("shards.move.1", 1), ("totals.0", 5)]
FAULTS = [
    pytest.param(name, (rank, operation, turn, when), marks=() if is_short else pytest.mark.matrix)
    for name, places in (("fits", WHOLE), ("a joiner that is small", JOINING))
    for row, (operation, turn) in enumerate(places)
    for column, when in enumerate(("before", "after", "unsent", "sent"))
    for rank in (0, 2)
    for is_short in [column == row % 4 and rank == 2 * (row % 2)]
]


@pytest.mark.parametrize(
    ("name", "fault"),
    FAULTS,
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, tuple) else each,
)
def test_a_fault_changes_nothing(undisturbed, name, fault):
    """While it is whole, while it is decided that it is to be cut, and while it is given out."""
    job = Job("auto", CASES[name], faults=[fault])
    scripts = job.run()
    assert job.hub.fired == job.hub.faults
    is_lost = fault[-1] in ("unsent", "sent")
    assert len(scripts) == job.hub.size - is_lost
    for script in scripts:
        assert script.trainer.applied_steps == EPOCHS * STEPS
        assert script.values == pytest.approx(undisturbed, abs=1e-6)
        assert script.shards.is_cut == CASES[name].is_cut


@pytest.mark.parametrize("mode", [True, "auto", False])
@pytest.mark.parametrize("name", ["fits", "fits only cut"])
def test_a_checkpoint_is_gone_on_with_whether_it_is_cut_or_not(undisturbed, name, mode):
    """By new workers, who decide it anew."""
    first = Job(False, CASES[name])
    first.epochs = 1
    second = Job(mode, CASES[name])
    second.snapshot = first.run()[0].trainer._state.replica.snapshot()
    for script in second.run():
        assert script.trainer.applied_steps == EPOCHS * STEPS
        assert script.values == pytest.approx(undisturbed, abs=1e-6)
        assert (script.num_held is not None) == (mode is True or (mode and CASES[name].is_cut))


def test_before_the_pause_a_checkpoint_is_written(tmp_path):
    """Of the step at which the worker was lost, and the optimizer's own; once, however often."""
    Job(True, CASES["a loss makes it short"], folder=tmp_path).run()
    steps = sorted(
        int(path.name.partition("-")[2].split("-")[0]) for path in tmp_path.glob("step-*")
    )
    assert CHANGED_AT + 1 in steps
    path = next(path for path in tmp_path.glob("step-*") if f"{CHANGED_AT + 1}" in path.name)
    state = torch.load(path / "state.pt", weights_only=True)
    assert state["position"]["applied_steps"] == CHANGED_AT + 1
    shapes = [each["exp_avg"].shape for each in state["optimizer"]["state"].values()]
    assert shapes == [each.shape for each in INITIAL.parameters()]


@pytest.mark.parametrize(("is_open", "kind"), [(True, TryAgainError), (False, JobError)])
@pytest.mark.parametrize("name", ["fits not at all", "a loss makes it short"])
def test_nobody_comes(monkeypatch, name, is_open, kind):
    """The job ends, after a while, or at once if nobody can come: with what there is, in a line."""
    monkeypatch.setattr(memory_pause, "is_elastic", lambda: is_open)
    with pytest.raises(kind) as error:
        Job(True, CASES[name]._replace(comes=""), waits=0.1).run()
    words = (
        r"shard_optimizer: \d workers have room for .* MiB of the optimizer's state, which takes"
    )
    assert error.match(words)
    assert "add workers or memory" in str(error.value)
    assert type(error.value) is kind
