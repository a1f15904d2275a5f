"""Bounded staleness: gradient k is applied after step k + S was computed, whatever happens."""

from __future__ import annotations

import copy
import math
from collections import deque

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.core.data.shards import permutation
from hetero_hvd.errors import UserError
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.step.staleness import Staleness

EPOCHS, STEPS, SIZE, BATCH = 3, 7, 54, 8
WARMUP = 4

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
X = torch.arange(float(SIZE))[:, None].expand(-1, 3) / SIZE


def new_model():
    """Its BatchNorm normalises with running statistics, as samples must not depend on a batch."""
    model = copy.deepcopy(INITIAL)
    model[1].eval()
    model[1].train = lambda _mode: model[1]
    return model


def learning(model):
    """Momentum, and a schedule by steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def trainer_of(bound):
    """A script of a worker with this bound."""

    def train(context):
        model = new_model()
        optimizer, scheduler = learning(model)
        loader = DataLoader(TensorDataset(X), BATCH, shuffle=True)
        schedule = {"scheduler": scheduler, "scheduler_interval": "step"}
        late = {"staleness_bound": bound, "staleness_warmup_steps": WARMUP, "lookahead": False}
        trainer = Trainer(model, optimizer, loader, **schedule, **late)
        trainer._state._context = context
        pipeline = trainer._pipeline
        found, taken, depths = {}, {}, []

        def loss(part):
            step = trainer.applied_steps + pipeline.num_in_flight
            taken.setdefault(step, []).append(part[:, 0].tolist())
            return model(part).square().mean()

        for epoch in trainer.epochs(EPOCHS):
            for (mine,) in trainer.batches():
                trainer.step(loss, mine)
                depths.append(pipeline.num_in_flight)
            assert pipeline.num_in_flight == 0
            found[epoch] = trainer.evaluate(lambda x: {"output": model(x).mean()}, loader)
        return {
            "applied": trainer.applied_steps,
            "lr": optimizer.param_groups[0]["lr"],
            "model": nn.utils.parameters_to_vector(model.parameters()).tolist(),
            "checksum": Replica({"model": model, "optimizer": optimizer}).checksum(),
            "found": found,
            "taken": taken,
            "depths": depths,
        }

    return train


def by_definition(bound):
    """Parameters in the end, in plain torch."""
    model = new_model()
    optimizer, scheduler = learning(model)
    flights, num_applied = deque(), 0

    def apply_oldest():
        for parameter, gradient in zip(model.parameters(), flights.popleft(), strict=True):
            parameter.grad = gradient
        optimizer.step()
        scheduler.step()

    for epoch in range(EPOCHS):
        order = permutation(SIZE, seed=0, epoch=epoch)
        for start in range(0, SIZE, BATCH):
            loss = model(X[order[start : start + BATCH]]).square().mean()
            flights.append(torch.autograd.grad(loss, list(model.parameters())))
            while len(flights) > (bound if num_applied >= WARMUP else 0):
                apply_oldest()
                num_applied += 1
        while flights:
            apply_oldest()
            num_applied += 1
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def check(results):
    """All replicas are equal, and the steps consumed each sample of each epoch once."""
    for result in results:
        assert result["applied"] == EPOCHS * STEPS
        assert result["lr"] == pytest.approx(0.1 * 0.9 ** (EPOCHS * STEPS))
        assert result["checksum"] == results[0]["checksum"]
    for epoch in range(EPOCHS):
        order = permutation(SIZE, seed=0, epoch=epoch)
        for step in range(STEPS):
            whole = X[order[step * BATCH : (step + 1) * BATCH], 0].tolist()
            last = [result["taken"].get(epoch * STEPS + step, [[]])[-1] for result in results]
            assert sorted(sample for part in last for sample in part) == sorted(whole)


@pytest.mark.parametrize("bound", [1, 2, 5, 8])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_training_follows_the_definition(bound, num_workers):
    """However many workers, the parameters are those of plain torch with the same delay."""
    results = run_together(Hub(num_workers), trainer_of(bound))
    check(results)
    assert results[0]["model"] == pytest.approx(by_definition(bound), abs=1e-6)
    assert max(results[0]["depths"]) == min(bound, STEPS)
    assert set(results[0]["depths"][:WARMUP]) == {0}


FAULTS = [
    *[(0, "gradients.0.0", turn, when) for turn in (1, 3) for when in ("before", "after")],
    *[(0, "gradients.0.2", turn, when) for turn in (1, 3) for when in ("before", "after")],
    *[(2, f"{name}.1", turn, "after") for name in ("totals", "buffers") for turn in (2, 5)],
    (1, "timings", 2, "after"),
    (1, "metrics", 2, "before"),
    (2, "metrics", 1, "after"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_loses_and_repeats_nothing(fault):
    """What was under way is computed anew; the replicas are equal and each sample counts once."""
    hub = Hub(3, [fault])
    check(run_together(hub, trainer_of(2)))
    assert hub.fired == {fault}


def test_the_slowest_worker_lags_by_the_bound_and_the_fastest_not_at_all():
    """Worker 1 computes a step only when worker 0 has submitted all that it may beyond it."""
    hub, bound, num_steps = Hub(2), 2, 12

    def wait_for(step):
        place = (f"totals.{step % (bound + 1)}", step // (bound + 1) + 1)
        with hub.changed:
            assert hub.changed.wait_for(
                lambda: any(key[1:] == place and 0 in hub.posts[key] for key in list(hub.posts)), 10
            )

    def work(context):
        model = new_model()
        loader = DataLoader(TensorDataset(X[: 4 * num_steps]), 4)
        late = {"staleness_bound": bound, "staleness_warmup_steps": 0}
        trainer = Trainer(model, learning(model)[0], loader, **late)
        trainer._state._context = context
        pipeline, lags = trainer._pipeline, []

        def loss(part):
            step = trainer.applied_steps + pipeline.num_in_flight
            if context.settings.worker.slot == 1:
                wait_for(min(step + bound, num_steps - 1))
            return model(part).square().mean()

        for _ in trainer.epochs(1):
            for (mine,) in trainer.batches():
                trainer.step(loss, mine)
                lags.append(pipeline.state()["lag"])
        return lags

    fastest, slowest = run_together(hub, work)
    assert fastest == [0] * num_steps
    assert slowest == [0, 1] + [2] * (num_steps - 2)


def test_it_falls_back_to_no_delay_when_the_loss_rises():
    """The guard speaks once, with numbers, and the bound stays 0, also for who takes the state."""
    staleness = Staleness(4)
    assert staleness.now == 4
    losses = [2.0 / (1 + step / 20) for step in range(100)]
    losses += [losses[-1] * 1.1**step for step in range(60)]
    changes = [step for step, loss in enumerate(losses) if staleness.applied(loss)]
    assert len(changes) == 1
    assert changes[0] > 100
    assert staleness.now == 0
    assert "the loss rose from" in staleness.reason
    other = Staleness(4)
    other.load_state_dict(staleness.state_dict())
    assert (other.now, other.reason) == (0, staleness.reason)


def test_it_falls_back_when_numbers_are_not_finite():
    """One such loss is an accident, three of twenty are not."""
    staleness = Staleness(1)
    assert not staleness.applied(math.nan)
    assert not any(staleness.applied(1.0) for _ in range(30))
    assert [staleness.applied(math.nan) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_a_plateau_are_no_divergence(seed):
    """A loss that falls and then stays, with deviations of 20 %, never ends the staleness."""
    random = torch.Generator().manual_seed(seed)
    staleness = Staleness(2)
    for step in range(2000):
        noise = math.exp(0.2 * torch.randn((), generator=random).item())
        assert not staleness.applied((0.1 + 2.0 * 0.99**step) * noise)


@pytest.mark.parametrize("bound", [-1, 9, 1.5, 2.0, True, "2"])
def test_other_bounds_are_refused(bound):
    """The message says what is allowed."""
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(X), BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"staleness_bound=.*: must be a whole number from 0 to 8"):
        Trainer(model, optimizer, loader, staleness_bound=bound)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
@pytest.mark.parametrize("bound", [1, 3])
def test_looking_ahead_alone_is_training_without_staleness(bound, optimizer):
    """One worker's own gradients are all that there are: its guess is the truth to the last bit."""
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    }
    found = []
    for options in ({}, {"staleness_bound": bound, "staleness_warmup_steps": 2}):
        model = new_model()

        def loss(x, model=model):
            return model(x).square().mean()

        trained = optimizers[optimizer](model.parameters())
        loader = DataLoader(TensorDataset(X), BATCH, shuffle=True)
        clip = {"clip": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5)}
        trainer = Trainer(model, trained, loader, **options, **clip)
        for _ in trainer.epochs(EPOCHS):
            for (mine,) in trainer.batches():
                trainer.step(loss, mine)
        found.append(nn.utils.parameters_to_vector(model.parameters()).tolist())
    assert found[1] == found[0]
