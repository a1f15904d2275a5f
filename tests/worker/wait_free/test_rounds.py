"""Wait-free rounds: every sample counts once, and late by one round, whoever takes it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.core.data.shards import permutation
from hetero_hvd.errors import UserError
from hetero_hvd.messages import Recovered
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.step.training_step import Course

EPOCHS, SIZE, BATCH, CHUNK = 2, 150, 32, 4
EYE = TensorDataset(torch.eye(SIZE, dtype=torch.float64))


class Counting(nn.Module):
    """One parameter for each sample: it tells what has been applied for that sample."""

    def __init__(self, *, has_statistics=False):
        super().__init__()
        self.per_sample = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
        self.norm = nn.BatchNorm1d(SIZE, dtype=torch.float64) if has_statistics else nn.Identity()

    def forward(self, rows):
        """The samples' own parameters."""
        return rows @ self.per_sample + 0.0 * self.norm(rows).sum()


def trainer_of(model, optimizer, bound=1, **options):
    """In rounds of about `BATCH` samples."""
    loader = DataLoader(EYE, BATCH, shuffle=True)
    late = {"staleness_bound": bound, "micro_batch_size": CHUNK, "wait_free": True}
    return Trainer(model, optimizer, loader, **late, **options)


def counting(slow=0.0, bound=1, failing=(), meanwhile=None, *, has_statistics=False, **options):
    """A worker that counts; rank 0 computes slowly, and has no memory at some calls."""

    def train(context):
        model = Counting(has_statistics=has_statistics)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = trainer_of(model, optimizer, bound, **options)
        trainer._state._context = context
        sizes, calls, told, seen = [], Counter(), [], []
        context.tell = told.append
        apply_oldest = trainer._step.apply_oldest

        def watched(collective):
            applied = apply_oldest(collective)
            sizes.append(applied.num_samples)
            return applied

        trainer._step.apply_oldest = watched

        def loss(rows):
            calls["all"] += 1
            if meanwhile is not None:
                meanwhile()
            if context.settings.worker.slot == 0:
                time.sleep(slow)
                if calls["all"] in failing:
                    calls["failed"] += 1
                    raise torch.OutOfMemoryError("as the test wants it")
            return model(rows).mean()

        for epoch in trainer.epochs(EPOCHS):
            for (mine,) in trainer.batches():
                trainer.step(loss, mine)
                calls["samples"] += len(mine)
                seen += [(epoch, index) for index in mine.argmax(1).tolist()]
        return {
            "keeps": [each.keeps_steps for each in told if isinstance(each, Recovered)],
            "seen": seen,
            "model": model.per_sample.tolist(),
            "checksum": Replica({"model": model, "optimizer": optimizer}).checksum(),
            "applied": trainer.applied_steps,
            "sizes": sizes,
            **calls,
        }

    return train


def check(results):
    """With the linear rule each sample moves its parameter by 1 / BATCH, once in each epoch."""
    for result in results:
        assert result["model"] == pytest.approx([-EPOCHS / BATCH] * SIZE, rel=1e-6)
        assert result["checksum"] == results[0]["checksum"]
        assert result["applied"] == results[0]["applied"]


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_each_sample_counts_once_whoever_takes_it(num_workers, bound):
    """The replicas are equal, and what each sample has added does not depend on its round."""
    results = run_together(Hub(num_workers), counting(bound=bound))
    check(results)


def test_who_is_slow_takes_less():
    """Without any plan: a worker at a fraction of the speed takes a small part, and none waits."""
    results = run_together(Hub(3), counting(slow=0.02))
    check(results)
    assert results[0]["samples"] < 0.25 * SIZE * EPOCHS
    assert max(size for result in results for size in result["sizes"]) <= 4 * BATCH


FAULTS = [
    *[(0, "gradients.0.0", turn, when) for turn in (1, 3) for when in ("before", "after")],
    *[(2, "totals.1", turn, when) for turn in (1, 2) for when in ("before", "after")],
    (1, "timings", 1, "after"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_loses_and_repeats_nothing(fault):
    """Chunks of rounds that broke are given out again, to whoever is there."""
    hub = Hub(3, [fault])
    check(run_together(hub, counting()))
    assert hub.fired == {fault}


DEATHS = [
    *[
        (2, f"{name}.{tag}", 2, way)
        for name, tag in (("totals", 0), ("gradients.0", 1))
        for way in ("unsent", "sent")
    ],
    (0, "totals.1", 1, "sent"),
    (1, "timings", 1, "sent"),
]


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("fault", DEATHS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_death_at_any_moment_loses_and_repeats_nothing(fault, bound):
    """Wherever the others are: all of them keep what they have computed, or none does."""
    hub = Hub(3, [fault])
    results = run_together(hub, counting(bound=bound))
    assert hub.fired == {fault}
    assert len(results) == 2
    check(results)
    assert results[0]["keeps"] == results[1]["keeps"]


SECOND = {
    "none": None,
    "while they meet": (2, "reports", 2, "unsent"),
    "when they have met": (2, "plan", 2, "sent"),
    "before it submits again": (2, "totals.0", 4, "unsent"),
    "when it has submitted again": (2, "totals.0", 4, "sent"),
    "after that": (2, "gradients.0.0", 5, "unsent"),
}
"""Another loss after the first one, which comes when all others wait for round 3."""


@pytest.mark.parametrize("second", SECOND)
def test_who_is_left_computes_nothing_twice(second):
    """One or two in a row are lost: what the others have computed is submitted again."""
    faults = {(3, "totals.1", 2, "awaited"), SECOND[second]} - {None}
    hub = Hub(4, faults)
    results = run_together(hub, counting())
    assert hub.fired == faults
    assert len(results) == 4 - len(faults)
    check(results)
    for result in results:
        assert result["keeps"][0]
        assert result["keeps"] == results[0]["keeps"]
    if all(results[0]["keeps"]):
        seen = Counter(chain.from_iterable(result["seen"] for result in results))
        assert set(seen.values()) == {1}


ANEW = {
    "statistics": {"has_statistics": True},
    "error feedback": {"compression": "fp16-feedback"},
}


@pytest.mark.parametrize("options", ANEW.values(), ids=ANEW)
def test_what_cannot_be_submitted_twice_is_computed_anew(options):
    """All drop what was not reduced, and each sample counts once."""
    hub = Hub(3, [(2, "totals.1", 2, "awaited")])
    results = run_together(hub, counting(**options))
    assert hub.fired == hub.faults
    check(results)
    assert [result["keeps"] for result in results] == [[False], [False]]


@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 1)], ids=["one loss", "another before a chunk"])
def test_a_division_goes_on_as_long_as_its_parts_are_kept(sizes):
    """Who drops its parts at a second loss divides the epoch anew, as all others do."""
    model = nn.Linear(SIZE, 1)
    rounds = trainer_of(model, torch.optim.SGD(model.parameters(), lr=1.0))._step._rounds
    courses = [Course(Position(), SimpleNamespace(size=n, rank=0), len, 0) for n in sizes]
    next(rounds.slices(courses[0]))
    rounds.set_aside()
    rounds.go_on([0, 2])
    if len(sizes) > 2:
        rounds.drop()
    assert rounds.goes_on == (len(sizes) == 2)
    next(rounds.slices(courses[-1]))
    assert len(rounds._known.queues) == sizes[-1]


def test_a_worker_that_joins_at_a_loss_takes_part_in_the_next_rounds():
    """Nobody knows what the rounds under way are to one who has none: they are computed anew."""
    hub = Hub(4, [(2, "totals.1", 2, "awaited")], late={3})
    results = run_together(hub, counting(meanwhile=lambda: hub.admit(3)))
    assert hub.fired == hub.faults
    assert len(results) == 3
    check(results)
    assert results[2]["seen"]
    assert [result["keeps"] for result in results[:2]] == [[False], [False]]


@pytest.mark.parametrize("failing", [{1}, {4}, {2, 9}], ids=str)
def test_without_memory_the_round_is_computed_again(failing):
    """What the round's earlier chunks have added is dropped, and added again."""
    results = run_together(Hub(2), counting(failing=failing))
    check(results)
    assert results[0]["failed"] == len(failing)


def new_model():
    """The same one each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def test_training_follows_the_definition():
    """Plain torch with the same rounds: late by one, learning rate by size, mean over samples."""
    model = new_model()
    trainer = trainer_of(
        model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), lookahead=False
    )
    rounds = defaultdict(list)

    def loss(rows):
        rounds[trainer._state.position.epoch, trainer._step._rounds._number].append(rows)
        return model(rows).square().mean()

    for _ in trainer.epochs(EPOCHS):
        for (mine,) in trainer.batches():
            trainer.step(loss, mine)

    plain, flights = new_model(), deque()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9)

    def apply_oldest():
        gradients, size = flights.popleft()
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.param_groups[0]["lr"] = 0.2 * size / BATCH
        optimizer.step()

    for epoch in range(EPOCHS):
        for number in sorted(n for e, n in rounds if e == epoch):
            rows = torch.cat(rounds[epoch, number])
            value = plain(rows).square().mean()
            flights.append((torch.autograd.grad(value, list(plain.parameters())), len(rows)))
            if len(flights) > 1:
                apply_oldest()
        while flights:
            apply_oldest()
    assert len({len(chunks) for chunks in rounds.values()}) > 1
    expected = nn.utils.parameters_to_vector(plain.parameters()).tolist()
    assert nn.utils.parameters_to_vector(model.parameters()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_loads_ahead(num_workers):
    """Its own processes load the chunks; the order of the epoch is the one of the steps."""
    model = Counting()
    loader = DataLoader(EYE, BATCH, shuffle=True, num_workers=num_workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, optimizer, loader, micro_batch_size=CHUNK, wait_free=True)
    seen = []
    for _ in trainer.epochs(1):
        for (mine,) in trainer.batches():
            trainer.step(lambda rows: model(rows).mean(), mine)
            seen += mine.argmax(1).tolist()
    assert seen == permutation(SIZE, seed=0, epoch=0).tolist()


def test_statistics_are_means_over_samples():
    """A running mean moves by the mean over the round's samples, whatever the workers' parts."""

    def train(context):
        model = nn.Sequential(nn.BatchNorm1d(SIZE, momentum=1.0), nn.Linear(SIZE, 1)).double()
        trainer = trainer_of(model, torch.optim.SGD(model.parameters(), lr=0.0))
        trainer._state._context = context
        for _ in trainer.epochs(1):
            for (mine,) in trainer.batches():
                trainer.step(lambda rows: model(rows).mean(), mine)
        return model[0].running_mean.tolist()

    means = run_together(Hub(3), train)
    assert means[0] == means[1] == means[2]
    assert max(means[0]) < 1.0


def test_an_evaluation_waits_for_the_end_of_the_epoch():
    """In the loop the workers are at different places."""
    model = Counting()
    trainer = trainer_of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in trainer.epochs(1):
        for index, (mine,) in enumerate(trainer.batches()):
            trainer.step(lambda rows: model(rows).mean(), mine)
            if index == 0:
                with pytest.raises(UserError, match="evaluate after the loop"):
                    trainer.evaluate(lambda rows: {"mean": model(rows).mean()}, DataLoader(EYE, 8))
    model = Counting()
    trainer = trainer_of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in trainer.epochs(1):
        for (mine,) in trainer.batches():
            trainer.step(lambda rows: model(rows).mean(), mine)
        found = trainer.evaluate(lambda rows: {"mean": model(rows).mean()}, DataLoader(EYE, BATCH))
    assert found["mean"] < 0.0


@pytest.mark.parametrize(
    ("optimizer", "rule", "factor"),
    [("SGD", "auto", 0.25), ("SGD", "none", 1.0), ("Adam", "auto", 0.5), ("Adam", "linear", 0.25)],
)
def test_the_learning_rate_follows_the_size_of_the_round(optimizer, rule, factor):
    """Linear for plain gradients, as the square root for normalised ones; only for the update."""
    model = nn.Linear(1, 1)
    trained = getattr(torch.optim, optimizer)(model.parameters(), lr=0.5)
    rates = []
    trained.register_step_pre_hook(lambda *_: rates.append(trained.param_groups[0]["lr"]))
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), 16)
    trainer = Trainer(model, trained, loader, wait_free=True, wait_free_lr=rule, micro_batch_size=4)
    for _ in trainer.epochs(1):
        for (mine,) in trainer.batches():
            trainer.step(lambda rows: model(rows).mean(), mine)
    assert rates[-1] == 0.5 * factor  # the first one makes the state
    assert trained.param_groups[0]["lr"] == 0.5
