"""A training whose optimizer's state lies in parts, and what must come out of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.core.shards.cut import Span
from hetero_hvd.core.shards.rooms import StateRoom

EPOCHS, STEPS, BATCH = 2, 4, 6
SIZE = STEPS * BATCH
ROOMS = (24, 12, 8, 8)
"""Blocks that each worker's memory holds; the model has ten."""

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
X = torch.randn(SIZE, 16)


def give_room(shards, num_blocks):
    """As if so many blocks were measured to have room in a worker's memory, whatever it holds."""
    shards.head_room.room = lambda _: StateRoom(num_blocks, num_blocks)


class Script:
    """Trains with AdamW in parts, clips by norm, and has a scheduler and a moving average."""

    def __init__(self, context, *, shards=True, rooms=ROOMS, state=None, **options):
        self.rank = context.settings.worker.slot
        self.model = copy.deepcopy(INITIAL)
        self.average = copy.deepcopy(INITIAL)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if state is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state))
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
            **options,
        )
        self.shards = self.trainer._state._kept.shards
        if shards:
            give_room(self.shards, rooms[self.rank])
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
                self.trainer.step(self.loss, x)
        return self

    def loss(self, x):
        """How far the model is from giving back what it is given."""
        return (self.model(x) - x).square().mean()

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
        slices = self.shards.slices
        return {
            (block, name): value.tolist()
            for span in slices.spans()
            for block in range(*span)
            for _, state in slices.give(type(span)(block, block + 1))
            for name, value in state.items()
        }


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
    for piece in layout.pieces(Span(0, layout.num_blocks)):
        for block in range(*piece.span):
            start = (block - piece.span.start) * 256
            for name, value in whole[piece.number].items():
                wanted = value.flatten()[start : start + 256] if value.dim() else value
                held = found[block, name]
                assert len(held) >= copies  # who has given a part away lets go at its next update
                assert all(each == held[0] for each in held)
                assert held[0] == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-7)
