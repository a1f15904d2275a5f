"""Whatever a resume may change: each sample is still used once, or it is refused by name."""

from __future__ import annotations

import json

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader

from hetero_hvd import Trainer
from hetero_hvd.errors import UserError

SIZE, BATCH, STOP = 52, 8, 3
"""Samples, samples in a step, and the step after which the first run stops: 24 samples are used."""


class Counting(nn.Module):
    """One parameter for each sample, which moves when the sample is used."""

    def __init__(self, width=1):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(64))
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, index):
        """The loss."""
        return -self.counts[index].mean()


class Kept:
    """A script's own state."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        """One number."""
        return {"value": self.value}

    def load_state_dict(self, state):
        """One number."""
        self.value = state["value"]


def step_lr(optimizer):
    """A schedule."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def one_cycle(optimizer):
    """A schedule that keeps its facts in the optimizer's groups, and starts low."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=50)


def run(folder, *, resume="", stop_at=None, epochs=1, workers=1, **changes):
    """A job that begins or goes on; gives the counts, the optimizer and all that was kept.

    Args:
        folder: For its checkpoints.
        resume: Folder to go on from.
        stop_at: Keep the state after this step, and end; None: run to the end.
        epochs: Wanted.
        workers: Threads.
        changes: Of the script; see below.
    """
    settings = {"folder": str(folder), "run": folder.name, "every_seconds": 0.0}
    settings |= {"resume": str(resume)} if resume else {}
    given = {"size": SIZE, "batch": BATCH, "shuffle": True, "drop_last": False, "width": 1} | {
        "optimizer": torch.optim.SGD,
        "scheduler": None,
    }
    own = {name: changes.pop(name, value) for name, value in given.items()}

    def train(context):
        torch.manual_seed(0)
        model = Counting(own["width"])
        optimizer = own["optimizer"](model.parameters(), lr=1.0)
        loader = DataLoader(
            range(own["size"]), own["batch"], shuffle=own["shuffle"], drop_last=own["drop_last"]
        )
        scheduler = own["scheduler"] and own["scheduler"](optimizer)
        trainer = Trainer(model, optimizer, loader, scheduler=scheduler, **changes)
        trainer._state._context = context

        def end():
            trainer._state._kept.keep()
            return model.counts.detach().clone(), optimizer.param_groups[0]

        for _ in trainer.epochs(epochs):
            for index in trainer.batches():
                trainer.step(model, index)
                if trainer.applied_steps == stop_at:
                    trainer._drain()
                    return end()
        return end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
        return run_together(Hub(workers), train)[0]


@pytest.fixture(autouse=True)
def _free_choice_of_algorithms():
    """The reproducible mode sets it for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


EXACT = {
    "larger batches": ({}, {"batch": 16}),
    "batches that do not divide what is used": ({}, {"batch": 7}),
    "smaller batches": ({}, {"batch": 2}),
    "accumulation": ({}, {"accumulation_steps": 2}),
    "no accumulation": ({"accumulation_steps": 2, "batch": 4}, {"batch": 4}),
    "drop_last": ({}, {"drop_last": True}),
    "no drop_last, other batches": ({"drop_last": True}, {"batch": 5}),
    "more workers": ({}, {"workers": 3}),
    "fewer workers, other batches": ({"workers": 2}, {"batch": 12}),
    "a bound": ({}, {"staleness_bound": 2}),
    "no bound": ({"staleness_bound": 2, "staleness_warmup_steps": 0}, {}),
    "another bound": (
        {"staleness_bound": 1, "staleness_warmup_steps": 0},
        {"staleness_bound": 2, "staleness_warmup_steps": 0, "batch": 4},
    ),
    "wait-free rounds": ({}, {"wait_free": True, "micro_batch_size": 4}),
    "reproducible": ({}, {"reproducible": True, "grain": 4}),
    "not reproducible": ({"reproducible": True, "grain": 4}, {}),
    "another grain": ({"reproducible": True, "grain": 4}, {"reproducible": True, "grain": 2}),
    "a scheduler": ({}, {"scheduler": step_lr}),
    "no scheduler": ({"scheduler": step_lr}, {}),
    "a scaler": ({}, {"scaler": torch.amp.GradScaler("cpu")}),
    "no scaler": ({"scaler": torch.amp.GradScaler("cpu")}, {}),
    "own state": ({}, {"extra_state": {"kept": Kept()}}),
    "no own state": ({"extra_state": {"kept": Kept()}}, {}),
    "another seed, in order": ({"shuffle": False}, {"shuffle": False, "seed": 1}),
    "more data, in order": ({"shuffle": False}, {"shuffle": False, "size": 60, "batch": 9}),
    "less data, in order": ({"shuffle": False}, {"shuffle": False, "size": 30}),
}


@pytest.mark.parametrize(("before", "after"), EXACT.values(), ids=EXACT.keys())
def test_what_changes_leaves_each_sample_used_once(tmp_path, before, after):
    """In the middle of an epoch: the second run uses exactly what the first one has left."""
    stop_at = STOP * BATCH // (before.get("batch", BATCH) * before.get("accumulation_steps", 1))
    first, _ = run(tmp_path / "one", stop_at=stop_at, **before)
    num_used = int((first > 0).sum())
    assert num_used == STOP * BATCH + before.get("staleness_bound", 0) * BATCH
    last, _ = run(tmp_path / "two", resume=tmp_path / "one", **after)
    size = after.get("size", SIZE)
    used, is_left = last - first > 0, first == 0
    assert not (used & ~is_left).any()
    num_dropped = (size - num_used) % BATCH if after.get("drop_last") else 0
    assert int((used & is_left)[:size].sum()) == size - num_used - num_dropped


REFUSED = {
    "another seed": ({}, {"seed": 1}, "seed was 0 and is 1: epoch 0 is under way"),
    "more data": ({}, {"size": 60}, "dataset length was 52 and is 60: epoch 0 is under way"),
    "less data than was used": (
        {"shuffle": False},
        {"shuffle": False, "size": 20},
        "dataset length was 52 and is 20",
    ),
    "no shuffle": ({}, {"shuffle": False}, "shuffle was True and is False"),
    "no wait-free rounds": (
        {"wait_free": True, "micro_batch_size": 4, "batch": 24, "stop_at": 1},
        {"batch": 24},
        "the epoch was begun with wait_free: resume with it until it has ended",
    ),
    "another optimizer": (
        {},
        {"optimizer": torch.optim.Adam},
        "the optimizer was torch.optim.sgd.SGD, now it is torch.optim.adam.Adam: go on with",
    ),
    "another scheduler": (
        {"scheduler": step_lr},
        {"scheduler": one_cycle},
        "the scheduler was torch.optim.lr_scheduler.StepLR, now it is torch.optim.lr_scheduler.One",
    ),
    "another model": ({}, {"width": 2}, "it does not fit this script: model: Error(s) in loading"),
}


@pytest.mark.parametrize(("before", "after", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_converted_is_refused_by_name(tmp_path, before, after, words):
    """What was, what is, and what to do; in one line with the checkpoint's name."""
    run(tmp_path / "one", **{"stop_at": STOP} | before)
    with pytest.raises(UserError) as caught:
        run(tmp_path / "two", resume=tmp_path / "one", **after)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


BETWEEN = {
    "seed": {"seed": 1},
    "length": {"size": 44},
    "shuffle": {"shuffle": False},
    "all": {"seed": 2, "size": 60, "batch": 13, "accumulation_steps": 2, "drop_last": False},
    "wait-free rounds": {"wait_free": True, "micro_batch_size": 2},
}


@pytest.mark.parametrize("after", BETWEEN.values(), ids=BETWEEN.keys())
def test_between_two_epochs_all_of_the_data_may_change(tmp_path, after):
    """More epochs with another order: each sample of the new set is used once in each."""
    first, _ = run(tmp_path / "one")
    last, _ = run(tmp_path / "two", resume=tmp_path / "one", epochs=2, **after)
    assert ((last - first)[: after.get("size", SIZE)] > 0).all()


def test_fewer_epochs_than_were_trained_are_said(tmp_path, caplog):
    """There is nothing to do, which might be a mistake."""
    first, _ = run(tmp_path / "one", epochs=2)
    last, _ = run(tmp_path / "two", resume=tmp_path / "one", epochs=1)
    assert torch.equal(first, last)
    assert "epochs trained already: 2; asked for: 1 in all: nothing is left to do" in caplog.text


def test_what_comes_and_goes_is_said(tmp_path, caplog):
    """A new part begins anew, a scheduler with its own rates; one that is gone stays out."""
    run(tmp_path / "one", stop_at=STOP, extra_state={"old": Kept()})
    words = {"scheduler": one_cycle, "scheduler_interval": "step", "staleness_bound": 1}
    _, group = run(tmp_path / "two", resume=tmp_path / "one", epochs=1, **words)
    assert 2.0 / 25 < group["lr"] < 0.5  # the beginning of the cycle, a few steps on
    for name in ("it has no scheduler, which begins anew", "it has no staleness, which begins"):
        assert name in caplog.text
    assert "its extra_state['old'] is left out" in caplog.text
    _, group = run(tmp_path / "three", resume=tmp_path / "two", epochs=2)
    assert "its scheduler is left out" in caplog.text
    assert group["lr"] < 0.5


def test_two_resumes_in_one_epoch_add_up(tmp_path):
    """Each goes on with another batch size where the one before has ended."""
    first, _ = run(tmp_path / "one", stop_at=2)
    second, _ = run(tmp_path / "two", resume=tmp_path / "one", batch=5, stop_at=4)
    last, _ = run(tmp_path / "three", resume=tmp_path / "two", batch=3)
    assert int((second > 0).sum()) == 16 + 10
    assert ((last > 0) == (torch.arange(64) < SIZE)).all()
    assert not ((last > second) & (second > 0)).any()
    assert not ((second > first) & (first > 0)).any()
