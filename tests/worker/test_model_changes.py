"""Whatever a model may register or change while it trains, all workers hold the same."""

from __future__ import annotations

import copy

import pytest
import torch
from model_zoo import (
    BUFFERS,
    DIVISION_MATTERS,
    EDITS,
    REFUSED_IF_REPRODUCIBLE,
    Keeper,
    layers,
    made,
    state_of,
)
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError
from hetero_hvd.errors import JobError

BATCH = 4
X = torch.linspace(0, 1, 39).view(13, 3)
"""The last batch has one sample: all workers but one have no part in it."""

MODES = {
    "synchronous": {},
    "late": {"staleness_bound": 1, "staleness_warmup_steps": 0, "lookahead": False},
    "ahead": {"staleness_bound": 2, "staleness_warmup_steps": 2},
    "wait-free": {"wait_free": True, "staleness_bound": 1, "micro_batch_size": 2},
    "reproducible": {"reproducible": True, "grain": 2},
}
NUM_WORKERS = {"synchronous": (2, 3), "late": (3,), "ahead": (3,), "wait-free": (3,)}
NUM_WORKERS["reproducible"] = (2, 3)
torch.optim.SGD([torch.zeros(1)], lr=1.0)  # imports torch's compiler, before a worker waits
IS_EXACT = {"synchronous", "reproducible"}
"""Modes in which training is that of one process in plain torch."""


@pytest.fixture(autouse=True)
def restore_torch():
    """The reproducible mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def learning(model):
    """With momentum, so that a missing gradient is not a zero one."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


def script(initial, edits=(), **options):
    """What each worker does: a change of the model at the start of each epoch but the first."""

    def train(context):
        model = copy.deepcopy(initial)
        optimizer = learning(model)
        trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X), BATCH), **options)
        trainer._state._context = context
        for epoch in trainer.epochs(1 + max(1, len(edits))):
            if edits and epoch:
                edits[epoch - 1](model, optimizer)
            for (mine,) in trainer.batches():
                trainer.step(lambda x: model(x).square().mean(), mine)
        return state_of(model), trainer.fingerprint()

    return train


def in_plain_torch(maker, edits=()):
    """The same in one process, with whole batches."""
    model = made(maker)
    optimizer = learning(model)
    for epoch in range(1 + max(1, len(edits))):
        if edits and epoch:
            edits[epoch - 1](model, optimizer)
        for (x,) in DataLoader(TensorDataset(X), BATCH):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return state_of(model)


def check(found, expected):
    """Every tensor is there, and holds what it should; infinities and NaN where they should be."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, equal_nan=True, rtol=1e-4, atol=1e-6)


def run(mode, num_workers, maker, edits=()):
    """The state that all workers end with, after it was found to be the same."""
    results = run_together(Hub(num_workers), script(made(maker), edits, **MODES[mode]))
    assert len({fingerprint for _, fingerprint in results}) == 1
    return results[0]


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("mode", ["synchronous", "late", "wait-free", "reproducible"])
def test_buffers_are_those_of_one_process(mode, name):
    """Constants stay what they are, and what the forward pass changes moves as by the whole batch.

    However many workers there are, one of them without a part now and then.
    """
    maker = BUFFERS[name]
    if mode == "reproducible" and name in REFUSED_IF_REPRODUCIBLE:
        with pytest.raises(UserError, match=REFUSED_IF_REPRODUCIBLE[name]):
            run(mode, 1, maker)
        return
    alone, alone_fingerprint = run(mode, 1, maker)
    if mode in IS_EXACT and (name not in DIVISION_MATTERS or mode == "synchronous"):
        check(alone, in_plain_torch(maker))
    for num_workers in NUM_WORKERS[mode]:
        state, fingerprint = run(mode, num_workers, maker)
        if mode == "reproducible":
            assert fingerprint == alone_fingerprint
        elif mode != "wait-free" and name not in DIVISION_MATTERS:
            check(state, alone)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("mode", ["synchronous", "late", "ahead", "reproducible"])
def test_parameters_may_come_and_go(mode, name):
    """Parameters that are added, removed, replaced, frozen or thawed between epochs train on.

    As in one process in plain torch, however many workers there are.
    """
    edits = EDITS[name]
    alone, alone_fingerprint = run(mode, 1, layers, edits)
    if mode in IS_EXACT:
        check(alone, in_plain_torch(layers, edits))
    for num_workers in NUM_WORKERS[mode]:
        state, fingerprint = run(mode, num_workers, layers, edits)
        if mode == "reproducible":
            assert fingerprint == alone_fingerprint
        elif mode != "ahead":
            check(state, alone)


class Writing(nn.Module):
    """Keeps its weights small by itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x):
        """Write, then compute."""
        with torch.no_grad():
            self.inner.weight.clamp_(-1.0, 1.0)
        return self.inner(x)


class Lazy(Keeper):
    """Learns the shape of its buffer from the first batch."""

    def keep(self, x):
        """Of three features."""
        if not len(self.kept):
            self.kept = x.mean(0)


REFUSED = {
    "writing": (Writing, 1, "writes into the parameter inner.weight"),
    "max_norm": (lambda: nn.Sequential(nn.Embedding(3, 3, max_norm=1.0)), 1, "model.0: max_norm"),
    "no shape": (lambda: nn.Sequential(nn.LazyLinear(2)), 1, "model.0.weight has no shape yet"),
    "lazy": (lambda: Lazy(torch.zeros(0)), 2, "changes the shape of the buffer kept"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", ["synchronous", "late", "reproducible"])
def test_what_would_let_workers_drift_apart_is_refused_by_name(mode, name):
    """In the first step at the latest."""
    maker, num_workers, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        run(mode, num_workers, maker)


@pytest.mark.parametrize("mode", ["synchronous", "late", "wait-free", "reproducible"])
def test_a_change_on_one_worker_only_is_named(mode):
    """All workers end with a line that says what differs, and none waits for ever."""
    texts, initial = [], made(layers)

    def train(context):
        def append_here(model, optimizer):
            if context.settings.worker.slot == 1:
                EDITS["append"][0](model, optimizer)

        try:
            script(copy.deepcopy(initial), [append_here], **MODES[mode])(context)
        except JobError as error:
            texts.append(str(error))

    run_together(Hub(3), train)
    assert texts == [texts[0]] * 3
    assert "models differ: rank 0 has nothing else, rank 1 has 4.weight [2, 2]" in texts[0]


@pytest.mark.parametrize("mode", ["synchronous", "late", "ahead", "reproducible"])
def test_a_layer_may_be_thawed_within_an_epoch(mode):
    """Just before a step is computed, while others are under way: its gradient is reduced first."""
    initial = made(layers)

    def train(context):
        model = copy.deepcopy(initial)
        model[0].requires_grad_(requires_grad=False)
        optimizer = learning(model)
        options = {"accumulation_steps": 1, **MODES[mode]}
        trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X[:12]), 4), **options)
        trainer._state._context = context
        for epoch in trainer.epochs(2):
            for turn, (mine,) in enumerate(trainer.batches()):
                if (epoch, turn) == (1, 1):
                    model[0].requires_grad_(requires_grad=True)
                trainer.step(lambda x: model(x).square().mean(), mine)
        assert not torch.equal(model[0].weight, initial[0].weight)
        return trainer.fingerprint()

    assert len(set(run_together(Hub(2), train))) == 1
