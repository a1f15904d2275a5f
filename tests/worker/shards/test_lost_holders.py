"""A state in parts trains as a whole one does, whoever is lost at whatever operation."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.worker.shards import sharded_optimizer

EPOCHS, STEPS, BATCH = 2, 4, 6
SIZE = STEPS * BATCH
ROOMS = (24, 12, 8, 8)
"""Blocks that each worker's memory holds; the model has ten."""

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
X = torch.randn(SIZE, 16)


class Script:
    """Trains with AdamW in parts, clips by norm, and has a scheduler and a moving average."""

    def __init__(self, context, *, shards=True, rooms=ROOMS):
        self.rank = context.settings.worker.slot
        self.model = copy.deepcopy(INITIAL)
        self.average = copy.deepcopy(INITIAL)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.trainer = Trainer(
            self.model,
            self.optimizer,
            DataLoader(TensorDataset(X), BATCH, shuffle=True),
            scheduler=torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9),
            scheduler_interval="step",
            clip=lambda parameters: clip_grad_norm_(parameters, 0.1),
            extra_state={"average": self.average},
            after_step=self.after_step,
            shard_optimizer=shards,
        )
        self.shards = self.trainer._state._shards
        if shards:
            self.shards._room_blocks = rooms[self.rank]
        self.trainer._state._context = context
        self.snapshot = {}

    @torch.no_grad()
    def after_step(self):
        """The moving average."""
        for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            kept.lerp_(new, 0.25)

    def run(self):
        """All epochs."""
        for _ in self.trainer.epochs(EPOCHS):
            for (x,) in self.trainer.batches():
                self.trainer.step(lambda x: (self.model(x) - x).square().mean(), x)
        return self

    def keep_at(self, applied_steps):
        """Let rank 0 keep what a checkpoint after so many steps would hold."""
        state = self.trainer._state

        def step_done():
            is_whole = self.shards is None or self.shards.is_collected
            if is_whole and self.trainer.applied_steps == applied_steps:
                self.snapshot = state.replica.snapshot()

        state._kept.step_done = step_done
        if self.shards is not None:
            self.shards.wishes.wants_one = lambda: self.trainer.applied_steps == applied_steps - 1
        return self

    def resume(self, snapshot):
        """Begin with what was kept."""
        state = self.trainer._state
        state.replica.resume(snapshot)
        state._has_loaded = True
        return self

    @property
    def values(self):
        """Of the model and of the average."""
        both = [*self.model.parameters(), *self.average.parameters()]
        return nn.utils.parameters_to_vector(both).detach()

    def states(self):
        """(piece, name) to what this worker holds of the optimizer's state."""
        slices = self.shards._slices
        return {
            (block, name): value.tolist()
            for span in slices.spans()
            for block in range(*span)
            for _, state in slices.give(type(span)(block, block + 1))
            for name, value in state.items()
        }


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """So that each operation comes several times."""
    monkeypatch.setattr(sharded_optimizer, "PACK_BLOCKS", 4)
    monkeypatch.setattr(sharded_optimizer, "MOVE_BLOCKS", 3)


@pytest.fixture(scope="module")
def undisturbed():
    """The same with the whole state on each worker."""
    return run_together(Hub(3), lambda context: Script(context, shards=False).run())[0]


def check(scripts, undisturbed, *, copies=2):
    """All are as one that had the whole state; and each block is held by so many, alike."""
    whole = undisturbed.optimizer.state_dict()["state"]
    assert {script.trainer.applied_steps for script in scripts} == {EPOCHS * STEPS}
    for script in scripts:
        assert torch.equal(script.values, scripts[0].values)
        assert script.values == pytest.approx(undisturbed.values, abs=1e-6)
        assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**8)
        assert not script.optimizer.state
    layout = scripts[0].shards._layout
    found = {}
    for script in scripts:
        for key, value in script.states().items():
            found.setdefault(key, []).append(value)
    for piece in layout.pieces(sharded_optimizer.Span(0, layout.num_blocks)):
        for block in range(*piece.span):
            start = (block - piece.span.start) * 256
            for name, value in whole[piece.number].items():
                wanted = value.flatten()[start : start + 256] if value.dim() else value
                held = found[block, name]
                assert len(held) >= copies  # who has given a part away lets go at its next update
                assert all(each == held[0] for each in held)
                assert held[0] == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_parts_train_as_the_whole_does(undisturbed, num_workers):
    """Without a fault; what one worker could hold alone is held by two all the same."""
    scripts = run_together(Hub(num_workers), lambda context: Script(context).run())
    check(scripts, undisturbed, copies=min(2, num_workers))
    if num_workers > 2:
        lengths = [sum(s.length for s in script.shards._slices.spans()) for script in scripts]
        wanted = [10, 6, 4] if num_workers == 3 else [9, 5, 3, 3]
        assert max(abs(a - b) for a, b in zip(lengths, wanted, strict=True)) <= 1


def test_the_bits_are_those_of_the_whole(undisturbed):
    """With the same sums."""
    scripts = run_together(Hub(3), lambda context: Script(context).run())
    assert all(torch.equal(script.values, undisturbed.values) for script in scripts)


@pytest.mark.parametrize(("num_workers", "num_loaders"), [(1, 1), (2, 2), (4, 1), (4, 2)])
def test_a_checkpoint_is_the_optimizers_own_and_is_gone_on_with_by_any_number(
    undisturbed, num_workers, num_loaders
):
    """As it would be without parts; one worker has it, or several; or none is in parts any more."""
    plain = run_together(Hub(1), lambda c: Script(c, shards=False).keep_at(3).run())[0]
    first, *others = run_together(Hub(3), lambda context: Script(context).keep_at(3).run())
    check([first, *others], undisturbed)
    assert not any(script.snapshot for script in others)
    assert first.snapshot["kinds"] == plain.snapshot["kinds"]
    kept, wanted = (each.snapshot["optimizer"]["state"] for each in (first, plain))
    assert kept.keys() == wanted.keys()
    for number, state in wanted.items():
        assert kept[number].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(kept[number][name], value)

    def go_on(context):
        script = Script(context)
        return (script.resume(first.snapshot) if script.rank < num_loaders else script).run()

    check(run_together(Hub(num_workers), go_on), undisturbed, copies=min(2, num_workers))
    alone = run_together(Hub(1), lambda c: Script(c, shards=False).resume(first.snapshot).run())
    assert alone[0].values == pytest.approx(undisturbed.values, abs=1e-6)


def test_who_has_too_little_room_together_is_told_so_in_one_line():
    """Before the first step, with what there is and what is needed."""
    with pytest.raises(JobError, match=r"shard_optimizer: 3 workers have room for .* MiB") as error:
        run_together(Hub(3), lambda context: Script(context, rooms=(9, 6, 4)).run())
    assert "add workers or memory" in str(error.value)


def test_a_part_that_all_its_holders_take_with_them_is_named():
    """And where there is no checkpoint the job is to be started again."""
    faults = [(rank, "shards.parameters.0", 3, "unsent") for rank in (0, 1)]
    with pytest.raises(TryAgainError) as error:
        run_together(Hub(4, faults), lambda context: Script(context).run())
    words = (
        r"after step \d all workers that held \d+% of the optimizer's state are lost, and there is"
    )
    assert re.match(words, str(error.value))


def test_one_after_the_other_is_lost_and_the_last_goes_on_alone(undisturbed, monkeypatch):
    """Between two losses the parts have got their second holders."""
    monkeypatch.setattr(sharded_optimizer, "MOVE_BLOCKS", 10)
    faults = [
        (0, "totals.0", 2, "sent"),
        (1, "shards.parameters.1", 5, "unsent"),
        (2, "shards.parameters.0", 8, "sent"),
    ]
    hub = Hub(4, faults)
    scripts = run_together(hub, lambda context: Script(context, rooms=(24,) * 4).run())
    assert hub.fired == hub.faults
    check(scripts, undisturbed, copies=1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation", ["reports", "shards.gradient.0.0", "shards.parameters.0", "shards.move.1"]
)
def test_a_second_fault_while_the_first_is_mended_changes_nothing(undisturbed, operation, when):
    """Worker 0 has not got the sums of a step that the others are in the midst of applying."""
    turn = 4 if operation == "shards.parameters.0" else 2 if operation == "reports" else 1
    faults = [(0, "gradients.0.0", 3, "after"), (2, operation, turn, when)]
    if operation == "shards.move.1":
        faults.append((1, "totals.0", 5, "sent"))
    hub = Hub(3, faults)
    scripts = run_together(hub, lambda context: Script(context, rooms=(24, 24, 24)).run())
    assert hub.fired == hub.faults
    check(scripts, undisturbed)


OPERATIONS = ("gradients.0.0", "totals.0", "shards.parameters.0", "shards.parameters.2")
WAYS = ("before", "after", "unsent", "sent")
PLACES = ((0, 1), (2, 1), (0, 3), (2, 3), (0, EPOCHS * STEPS), (2, EPOCHS * STEPS))
"""(worker, which of its operations of that name)."""

FAULTS = [
    pytest.param((rank, operation, turn, when), marks=() if is_short else pytest.mark.matrix)
    for row, operation in enumerate(OPERATIONS)
    for column, when in enumerate(WAYS)
    for number, (rank, turn) in enumerate(PLACES)
    for is_short in [number == (row + 2 * column) % len(PLACES)]
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_changes_nothing(undisturbed, fault):
    """Whoever is lost, or only hears of nothing; its parts get their second holders again."""
    _, _, turn, when = fault
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda context: Script(context, rooms=(24, 24, 24)).run())
    assert hub.fired == hub.faults
    is_lost = when in ("unsent", "sent")
    assert len(scripts) == 3 - is_lost
    if not (is_lost and turn == EPOCHS * STEPS):  # else no step was left to move anything after
        check(scripts, undisturbed)
