"""A fault at any point of any operation loses no step, repeats none, and leaves nobody waiting."""

from __future__ import annotations

import copy

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

EPOCHS, STEPS, SIZE, BATCH = 3, 3, 22, 8
OPERATIONS = {
    "gradients.0.0": 9,
    "totals.0": 9,
    "buffers.0": 9,
    "timings": 4,
    "metrics": 6,
    "checksums": 2,
    "finish": 1,
}
"""Each operation of a training, and how many times a worker waits for it without a fault."""

FAULTS = [
    (rank, operation, turn, when)
    for operation, turns in OPERATIONS.items()
    for turn in sorted({1, min(3, turns), turns})
    for rank in (0, 2)
    for when in ("before", "after")
]

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(context):
    """What a worker's script does; its parameters, metrics and the samples of each applied step."""
    x = torch.arange(float(SIZE))[:, None].expand(-1, 3) / SIZE
    model = copy.deepcopy(INITIAL)
    model[1].eval()  # normalises with running statistics: samples do not depend on their batch
    model[1].train = lambda _mode: model[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = DataLoader(TensorDataset(x), BATCH, shuffle=True)
    trainer = Trainer(model, optimizer, loader, scheduler=scheduler)
    trainer._state._context = context
    found, taken = {}, {}
    for epoch in trainer.epochs(EPOCHS):
        for (mine,) in trainer.batches():

            def loss(part):
                taken.setdefault(trainer.applied_steps, []).append(part[:, 0].tolist())
                return model(part).square().mean()

            trainer.step(loss, mine)
        first = trainer.evaluate(lambda x: {"output": model(x).mean()}, loader)
        second = trainer.evaluate(lambda x: {"square": model(x).square().mean()}, loader)
        found[epoch] = first | second
    return {
        "applied": trainer.applied_steps,
        "lr": optimizer.param_groups[0]["lr"],
        "model": nn.utils.parameters_to_vector(model.parameters()).tolist(),
        "found": found,
        "taken": taken,
    }


@pytest.fixture(scope="module")
def undisturbed():
    """One worker, no fault."""
    return run_together(Hub(1), train)[0]


def check(results, expected):
    """Every worker ended like the one that was not disturbed."""
    for result in results:
        assert result["applied"] == EPOCHS * STEPS
        assert result["lr"] == expected["lr"]
        assert result["model"] == pytest.approx(expected["model"], abs=1e-6)
        assert result["model"] == results[0]["model"]
        for epoch, metrics in result["found"].items():
            assert metrics == pytest.approx(expected["found"][epoch], abs=1e-6)
    for step, (whole,) in expected["taken"].items():
        last = [result["taken"].get(step, [[]])[-1] for result in results]
        assert sorted(sample for part in last for sample in part) == sorted(whole)


def test_workers_together_equal_one(undisturbed):
    """Without a fault."""
    check(run_together(Hub(3), train), undisturbed)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_changes_nothing(undisturbed, fault):
    """One worker fails to complete an operation, before or after the others completed it."""
    hub = Hub(3, [fault])
    check(run_together(hub, train), undisturbed)
    assert hub.fired == {fault}


def take_one_epoch(context):
    """A script that does nothing behind its last step: how often each sample was used."""
    counts = nn.Parameter(torch.zeros(SIZE))
    optimizer = torch.optim.SGD([counts], lr=1.0)
    loader = DataLoader(TensorDataset(torch.arange(SIZE)), BATCH, drop_last=True)
    trainer = Trainer(nn.ParameterList([counts]), optimizer, loader)
    trainer._state._context = context
    for _ in trainer.epochs(1):
        for (index,) in trainer.batches():
            trainer.step(lambda index: -BATCH * counts[index].mean(), index)
    return counts.tolist()


@pytest.mark.parametrize("operation", ["gradients.0.0", "totals.0"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_misses_the_last_step_of_all_takes_it_over(operation, when):
    """The others are at the end of the training already, and have no part for it any more."""
    hub = Hub(3, [(1, operation, SIZE // BATCH, when)])
    used = SIZE // BATCH * BATCH
    for counts in run_together(hub, take_one_epoch):
        assert counts == pytest.approx([1.0] * used + [0.0] * (SIZE - used))
    assert hub.fired == hub.faults


def test_an_early_second_fault_changes_nothing(undisturbed):
    """The rendezvous after a fault breaks too, while the workers tell each other where they are."""
    faults = [(1, "totals.0", 4, "after"), (2, "reports", 2, "before"), (0, "plan", 3, "after")]
    hub = Hub(3, faults)
    check(run_together(hub, train), undisturbed)
    assert len(hub.fired) >= 2
