"""The reproducible mode in one process, and with faults at named points."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hetero_hvd import Trainer, UserError
from hetero_hvd.errors import InvariantError, JobError

X = torch.arange(44.0)[:, None].expand(-1, 3) / 22


@pytest.fixture(autouse=True)
def restore_torch():
    """The mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def new_trainer(model=None, data=None, batch_size=8, loss_scale=1.0, **options):
    """A trainer in the mode, and a function that trains it for some epochs."""
    torch.manual_seed(0)
    if model is None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data or TensorDataset(X), batch_size, shuffle=True)
    trainer = Trainer(model, optimizer, loader, **{"reproducible": True, "grain": 2} | options)

    def train(epochs=2):
        for _ in trainer.epochs(epochs):
            for (part,) in trainer.batches():
                trainer.step(lambda x: loss_scale * model(x).square().mean(), part)
        return trainer.fingerprint()

    return trainer, train


class Moody(Dataset):
    """Has a generator of its own."""

    def __init__(self):
        self.random = torch.Generator().manual_seed(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return X[index] + torch.randn(3, generator=self.random)


class Stream(IterableDataset):
    """Without a length."""

    def __iter__(self):
        return iter(X)


REFUSED = {
    "multiple of grain=3": {"grain": 3},
    "leave it out, each grain": {"micro_batch_size": 4},
    "only with reproducible=True": {"reproducible": False},
    "drawn from the dataset.random, a torch Generator": {"data": Moody()},
    "SyncBatchNorm normalises": {"model": nn.Sequential(nn.SyncBatchNorm(3))},
    "0.weight is of torch.float64": {"model": nn.Sequential(nn.Linear(3, 1).double())},
    "compression=fp16": {"compression": "fp16"},
    "sum_bits=16": {"sum_bits": 16},
    "sum_bits=32 holds 64 grains": {"sum_bits": 32, "batch_size": 256},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_reproducible_is_refused(message):
    """By name, before training starts."""
    with pytest.raises(UserError, match=message):
        new_trainer(**REFUSED[message])


def test_streams_are_refused():
    """Their position is not known."""
    model = nn.Linear(3, 1)
    with pytest.raises(UserError, match="IterableDataset cannot be read from any position"):
        Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(Stream(), 8),
            reproducible=True,
            grain=2,
        )


def test_a_compiled_model_is_refused():
    """It is compiled for the shapes that come first."""
    with pytest.raises(UserError, match=r"model: torch.compile makes other code"):
        new_trainer(model=torch.compile(nn.Linear(3, 1), backend="eager"))


def test_the_job_must_plan_in_the_same_grains(monkeypatch):
    """Else the driver's shares could not be kept."""
    told = {"identity": {"driver": ["127.0.0.1", 1]}, "job": {"grain": 2}}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps(told))
    monkeypatch.setenv("HETERO_HVD_TLS", "-----BEGIN CERTIFICATE-----")
    with pytest.raises(UserError, match="start it with hetero-hvd run --reproducible --grain 2"):
        new_trainer()


@pytest.mark.parametrize("by_job", [True, False], ids=["by the job", "by the script"])
def test_batches_accumulate_in_grains(monkeypatch, by_job):
    """Whoever asks for the mode, accumulation sets the batch and grains bound the memory."""
    options = {"reproducible": True, "grain": 2}
    if by_job:
        monkeypatch.setenv("HETERO_HVD_REPRODUCIBLE", "1")
        monkeypatch.setenv("HETERO_HVD_GRAIN", "2")
        options = {"reproducible": None, "grain": None}
    trainer, train = new_trainer(accumulation_steps=2, **options)
    train(epochs=1)
    assert trainer.applied_steps == 3


class Counter(nn.Module):
    """Keeps something that depends on who was called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        """Count."""
        self.calls += 1
        return self.linear(x)


def test_a_buffer_that_cannot_be_summed_is_refused():
    """When the first grain has changed it."""
    _, train = new_trainer(model=Counter())
    with pytest.raises(UserError, match="changes the buffer calls"):
        train()


@pytest.mark.parametrize("scale", [1.0, 2.0**40, 2.0**-40], ids=["1", "large", "small"])
def test_wrong_scales_take_the_step_again(scale):
    """Whatever the loss's magnitude the gradients are those of plain PyTorch."""
    model = nn.Linear(3, 1)
    plain = copy.deepcopy(model)
    gradients = {}

    def clip(parameters):
        gradients.update(enumerate(p.grad.clone() for p in parameters))

    data = TensorDataset(X[:8])
    trainer, _ = new_trainer(model=model, loss_scale=scale, data=data, clip=clip)
    tries = []
    for _ in trainer.epochs(1):
        for (part,) in trainer.batches():

            def loss(x):
                tries.append(len(x))
                return scale * model(x).square().mean()

            (scale * plain(part).square().mean()).backward()
            trainer.step(loss, part)
    for index, parameter in enumerate(plain.parameters()):
        assert torch.allclose(gradients[index], parameter.grad, rtol=1e-5)
    assert tries == [2] * (5 if scale == 1.0 else 9)  # the first grain is computed twice


def test_a_step_that_comes_out_differently_is_noticed():
    """Taken again, its maxima must be the same."""
    model, factor = nn.Linear(3, 1), itertools.chain([0], itertools.count())
    trainer, _ = new_trainer(model=model)
    _, (part,) = next(trainer.epochs(1)), next(trainer.batches())
    with pytest.raises(InvariantError, match="came out differently"):
        trainer.step(lambda x: 2.0 ** (10 * next(factor)) * model(x).mean(), part)


def test_the_lower_level_takes_steps_again_too():
    """`batches` hands the same part out once more."""
    fingerprints = set()
    for use_step in (True, False):
        model = nn.Linear(3, 1)
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.ones(4), model.parameters())
        trainer, _ = new_trainer(model=model)
        for _ in trainer.epochs(1):
            for (part,) in trainer.batches():
                if use_step:
                    trainer.step(lambda x: 2.0**40 * model(x).square().mean(), part)  # noqa: B023
                    continue
                for (x,) in trainer.micro_batches(part):
                    trainer.backward(2.0**40 * model(x).square().mean())
                trainer.apply()
        fingerprints.add(trainer.fingerprint())
    assert len(fingerprints) == 1


def train_together(context):
    """What each worker's script does."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with torch.no_grad():
        start = torch.linspace(-1, 1, sum(p.numel() for p in model.parameters()))
        nn.utils.vector_to_parameters(start, model.parameters())
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=2.0**-24, momentum=0.9),
        DataLoader(TensorDataset(X), 16, shuffle=True),
        reproducible=True,
        grain=2,
    )
    trainer._state._context = context
    loader = DataLoader(TensorDataset(X), 5)
    for _ in trainer.epochs(2):
        for (mine,) in trainer.batches():
            trainer.step(lambda x: 2.0**20 * model(x).square().mean(), mine)
        trainer.evaluate(lambda x: {"output": model(x).mean()}, loader)
    return trainer.fingerprint()


@pytest.fixture(scope="module")
def undisturbed():
    """One worker, no fault."""
    return run_together(Hub(1), train_together)


FAULTS = [
    (rank, operation, turn, when)
    for operation, turns in {"grains": (1, 2, 7), "grains.0": (1, 2, 7), "metrics": (1,)}.items()
    for turn in turns
    for rank in (0, 2)
    for when in ("before", "after")
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_changes_no_bit(undisturbed, fault):
    """Three workers, one of which fails to complete an operation, end where one worker ends."""
    hub = Hub(3, [fault])
    assert set(run_together(hub, train_together)) == set(undisturbed)
    assert hub.fired == {fault}


def differing(context, *, seeds=(0, 0), grains=(2, 2)):
    """Two workers whose scripts are not quite the same."""
    rank = context.collective.rank
    model = nn.Linear(3, 1)
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.full((4,), float(seeds[rank])), model.parameters())
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(TensorDataset(X), 16),
        reproducible=True,
        grain=grains[rank],
    )
    trainer._state._context = context
    next(trainer.epochs(1))


def test_workers_that_start_differently_are_refused():
    """A script without a seed would give another run each time."""
    with pytest.raises(JobError, match=r"call torch.manual_seed before you build the model"):
        run_together(Hub(2), lambda context: differing(context, seeds=(0, 1)))


def test_workers_that_compute_differently_are_refused():
    """With the fact in which they differ, as they would be for threads or versions."""
    with pytest.raises(
        JobError, match=r"node:0 has grain 2, node:1 has grain 4: their results would differ"
    ):
        run_together(Hub(2), lambda context: differing(context, grains=(2, 4)))
