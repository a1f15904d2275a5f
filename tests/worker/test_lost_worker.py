"""Whoever is lost, in any mode and operation: the others go on, and each sample counts once."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd import Trainer
from hetero_hvd.worker.recovery.replica import Replica

pytestmark = pytest.mark.timeout(300)  # some ten small trainings each

EPOCHS, STEPS, BATCH = 1, 6, 8
SIZE = STEPS * BATCH
CHECK_STEPS = 3

LATE = {"staleness_warmup_steps": 0}
MODES = {
    "bound 0": {},
    "bound 1": {"staleness_bound": 1, **LATE},
    "bound 4": {"staleness_bound": 4, **LATE},
    "wait-free": {"wait_free": True, "micro_batch_size": 2},
    "reproducible": {"reproducible": True, "grain": 2},
    "accumulation": {"accumulation_steps": 2, "micro_batch_size": 2},
    "fp16": {"compression": "fp16-feedback", "staleness_bound": 2, **LATE},
    "norm over all workers": {"micro_batch_size": 2, "staleness_bound": 1, **LATE},
    "norm, in the script's own loop": {"micro_batch_size": 2},
}
WAYS = ("unsent", "sent", "before", "after")


class Counting(nn.Module):
    """One parameter for each sample counts exactly how often the sample was used."""

    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(SIZE))
        self.norm = nn.BatchNorm1d(1)

    def forward(self, index):
        """A loss whose gradient moves the counts; the statistics see the samples too."""
        zero = 0.0 * self.norm(index[:, None, None].expand(-1, 1, 2).float()).sum()
        return zero - BATCH * self.counts[index].mean()


def script(mode, reset_at=None):
    """What a worker runs; the driver asks for another membership after a step."""

    def train(context):
        torch.manual_seed(0)
        model = Counting()
        if mode.startswith("norm"):
            model = hetero_hvd.convert_sync_batch_norm(model)
        size = BATCH // MODES[mode].get("accumulation_steps", 1)
        loader = DataLoader(TensorDataset(torch.arange(SIZE)), size, shuffle=True)
        optimizer = torch.optim.SGD([model.counts], lr=1.0)
        trainer = Trainer(model, optimizer, loader, **MODES[mode])
        trainer._state._context = context
        context.reset_done = lambda _workers: setattr(context, "reset_requested", False)
        wanted = [reset_at]
        for _ in trainer.epochs(EPOCHS):
            for (mine,) in trainer.batches():
                if wanted[0] is not None and trainer.applied_steps >= wanted[0]:
                    context.reset_requested, wanted[0] = True, None
                if mode.endswith("own loop"):
                    for (piece,) in trainer.micro_batches(mine):
                        trainer.backward(model(piece))
                    trainer.apply()
                else:
                    trainer.step(model, mine)
            trainer.evaluate(lambda index: {"zero": 0.0 * index.sum()}, loader)
        return {
            "counts": model.counts.tolist(),
            "applied": trainer.applied_steps,
            "replica": Replica({"model": model, "optimizer": optimizer}).checksum(),
            "generation": context.collective.generation,
        }

    return train


def check(results, num_workers):
    """Of those who are left: each sample was used once in each epoch, the replicas are equal."""
    assert len(results) == num_workers
    for result in results:
        assert result["counts"] == pytest.approx([float(EPOCHS)] * SIZE, rel=1e-6)
        assert result["applied"] == results[0]["applied"]
        assert result["replica"] == results[0]["replica"]


@pytest.fixture(autouse=True)
def _often_checked(monkeypatch):
    monkeypatch.setenv("HETERO_HVD_CHECK_STEPS", str(CHECK_STEPS))


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_in_any_operation_costs_one_worker(mode):
    """A worker dies with or without its contribution, or an operation breaks for one of them.

    Every kind of operation of a training without a fault has its turn, in the middle of it.
    """
    undisturbed = Hub(3)
    check(run_together(undisturbed, script(mode)), 3)
    turns = Counter(name for _, name, _ in undisturbed.posts)
    kinds = {re.sub(r"\d+", "", name): (name, turn) for name, turn in sorted(turns.items())}
    for number, (operation, turn) in enumerate(kinds.values(), list(MODES).index(mode)):
        way = WAYS[number % len(WAYS)]
        fault = (number % 3, operation, (turn + 1) // 2, way)
        hub = Hub(3, [fault])
        results = run_together(hub, script(mode))
        assert hub.fired == {fault}
        check(results, 2 if way in ("unsent", "sent") else 3)


@pytest.mark.parametrize("mode", MODES)
def test_another_membership_costs_nothing(mode):
    """A reset that the driver wants, with steps under way."""
    results = run_together(Hub(3), script(mode, reset_at=0))
    check(results, 3)
    assert {result["generation"] for result in results} == {1}
