"""What users' functions draw, see and keep: equal on any number of workers, or refused by name."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Sampler, Subset
from turns import on_each_size

from hetero_hvd import Trainer, UserError

X = torch.arange(60.0).reshape(20, 3) / 30
BATCH, GRAIN = 8, 2

pytestmark = pytest.mark.usefixtures("_torch_is_put_back")


SOURCES = {
    "global": lambda: None,
    "own torch": lambda: torch.Generator().manual_seed(1),
    "own numpy": lambda: np.random.default_rng(1),
    "own legacy": lambda: np.random.RandomState(1),
    "own random": lambda: random.Random(1),  # noqa: S311
    "own, rarely": lambda: np.random.default_rng(1),
    "state": lambda: None,
}


class Draws:
    """A number at each call, from one source."""

    def __init__(self, source):
        self.own = SOURCES[source]()
        self.source = source
        self.calls = 0

    def __call__(self):
        """The number."""
        self.calls += 1
        match self.source:
            case "global":
                found = torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002, S311
            case "own torch":
                found = torch.rand((), generator=self.own)
            case "own numpy" | "own random":
                found = self.own.random()
            case "own legacy":
                found = self.own.rand()
            case "own, rarely":
                found = self.own.random() if random.random() < 0.25 else 0.0  # noqa: S311
            case "state":
                found = self.calls
        return 0.1 * float(found)


class Rows(Dataset):
    """Rows of X, changed by a function of the script."""

    def __init__(self, transform=lambda x: x):
        self.transform = transform

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.transform(X[index])


class Chain:
    """Transforms one after the other, as image libraries do."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, x):
        """All of them."""
        for step in self.steps:
            x = step(x)
        return x


def noisy(draws):
    """A transform of a sample."""
    return lambda x: x + draws()


def collate_with(change):
    """A `collate_fn` that changes the batch."""
    return lambda samples: change(torch.stack(samples))


def mixed(batch):
    """As MixUp does: each sample with its neighbour; and scaled by the largest."""
    return (batch + batch.roll(1, 0)) / batch.abs().max().clamp(min=0.1)


class Own(nn.Module):
    """A layer with random numbers."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def forward(self, x):
        """Noise."""
        return x + self.draws()


PLACES = {
    "dataset": lambda d: {"data": Rows(noisy(d))},
    "transform": lambda d: {"data": Rows(Chain(torch.clone, partial(torch.add, 0), noisy(d)))},
    "nested": lambda d: {
        "data": Subset(ConcatDataset([Rows(Chain(noisy(d))), Rows()]), list(range(20)))
    },
    "collate_fn": lambda d: {"collate": collate_with(lambda batch: batch + d())},
    "loss": lambda d: {"loss": lambda model, x: model(x + d()).square().mean()},
    "model": lambda d: {"layer": lambda: Own(d)},
    "metrics": lambda d: {"metrics": lambda model, x: {"out": model(x).mean() + d()}},
    "set": lambda d: {"held_out": Rows(noisy(d))},
    "set's collate_fn": lambda d: {"set_collate": collate_with(lambda batch: batch + d())},
    "clip": lambda d: {"clip": lambda parameters: parameters[0].grad.mul_(1 + d())},
    "between steps": lambda d: {"between": d},
}
SHAPES = {
    "collate_fn": {"collate": collate_with(mixed)},
    "loss": {"loss": lambda model, x: model(mixed(x)).square().mean()},
    "metrics": {"metrics": lambda model, x: {"out": model(mixed(x)).mean()}},
    "set's collate_fn": {"set_collate": collate_with(mixed)},
    "model": {"layer": lambda: nn.BatchNorm1d(3)},
}
TOGETHER = {"clip"}
"""Called by all workers alike, once a step: what they own stays equal."""


def train(context, make):
    """A short training and two evaluations; all that is to be equal."""
    case = make()
    model = nn.Sequential(case.get("layer", nn.Identity)(), nn.Linear(3, 1))
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor([0.3, -0.2, 0.1, 0.0]), model[1].parameters())
    data = case.get("data", Rows())
    sampler = case.get("sampler", RandomSampler)(data)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        DataLoader(data, BATCH, sampler=sampler, collate_fn=case.get("collate")),
        reproducible=True,
        grain=GRAIN,
        clip=case.get("clip"),
    )
    trainer._state._context = context
    loss = case.get("loss", lambda model, x: model(x).square().mean())
    metrics = case.get("metrics", lambda model, x: {"out": model(x).mean()})
    held_out = DataLoader(
        case.get("held_out", Rows()), 3, collate_fn=case.get("set_collate"), shuffle=False
    )
    found = []
    for _ in trainer.epochs(1):
        between = case.get("between", lambda: 0.0)()
        for x in trainer.batches():
            trainer.step(lambda x: loss(model, x) * (1 + between), x)  # noqa: B023
        found.append(trainer.evaluate(lambda x: metrics(model, x), held_out)["out"])
        found.append(trainer.evaluate(lambda x: metrics(model, x), held_out)["out"])
    return trainer.fingerprint(), *found


def case_of(place, source):
    """A function that makes the script's part anew for each worker."""
    if source == "shape":
        return lambda: SHAPES[place]
    return lambda: PLACES[place](Draws(source))


OWN = ("own torch", "own numpy", "own legacy", "own random", "own, rarely")


@pytest.fixture(scope="module")
def plain():
    """What comes out when nothing is drawn."""
    return on_each_size(lambda context: train(context, dict), sizes=(1,))[0]


EQUAL = (
    [(place, "global") for place in PLACES]
    + [(place, "shape") for place in SHAPES]
    + [(place, source) for place in sorted(TOGETHER) for source in (*OWN[:4], "state")]
)


@pytest.mark.parametrize(("place", "source"), EQUAL, ids=lambda value: value)
def test_it_is_equal_on_any_number_of_workers(plain, place, source):
    """Parameters and results of 1, 2 and 3 workers are one; and not those of a plain training."""
    found = set(on_each_size(lambda context: train(context, case_of(place, source))))
    assert len(found) == 1
    assert plain not in found


REFUSED = [
    (place, source)
    for place in PLACES
    if place not in TOGETHER | {"between steps"}
    for source in (*OWN, "state")
]


@pytest.mark.parametrize(("place", "source"), REFUSED, ids=lambda value: value)
def test_or_it_is_refused_by_name(place, source):
    """Generators that are not seeded, and state that changes what comes out, end the training."""
    with pytest.raises(UserError, match=r"^reproducible: ") as caught:
        on_each_size(lambda context: train(context, case_of(place, source)), sizes=(2,))
    assert "\n" not in str(caught.value)


def test_each_metrics_function_is_looked_into():
    """Not only the first one of a script, and all is found that the function itself refers to."""

    def one(context):
        own, calls = np.random.default_rng(1), Draws("state")
        seen, found = [], []
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, DataLoader(Rows(), BATCH), reproducible=True, grain=2)
        trainer._state._context = context

        def drawing(x):
            seen.append(x)
            return {"out": x.mean() + (own.random() if len(seen) > 2 else 0.0)}

        functions = [
            lambda x: {"out": x.mean()},
            lambda x: {"out": x.mean() + calls()},
            drawing,
        ]
        for _ in trainer.epochs(1):
            for function in functions:
                try:
                    trainer.evaluate(function, DataLoader(Rows(), 3))
                    found.append("")
                except UserError as error:
                    found.append(str(error))
            break
        return found

    ((first, second, third),) = on_each_size(one, sizes=(1,))
    assert not first
    assert "gives another result when it is called again" in second
    assert "random numbers are drawn from the metrics function: own" in third


class Backwards(Sampler):
    """A sampler of the script's own."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter(range(len(self.data) - 1, -1, -1))


def test_a_shuffling_sampler_is_seeded_and_others_are_followed():
    """The order comes from the run's seed whatever generator torch's sampler has."""
    own = partial(RandomSampler, generator=torch.Generator().manual_seed(5))
    assert len(set(on_each_size(lambda context: train(context, lambda: {"sampler": own})))) == 1
    assert (
        len(set(on_each_size(lambda context: train(context, lambda: {"sampler": Backwards})))) == 1
    )
