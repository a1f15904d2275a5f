"""What the trainer refuses, in one line that says what to do; and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hetero_hvd import Trainer, UserError
from hetero_hvd.worker.collective import open_collective

DATA = TensorDataset(torch.randn(12, 3))


class Stream(IterableDataset):
    """A stream of twelve."""

    def __iter__(self):
        return iter(DATA)


def sgd(model, **options):
    """Any optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def new_trainer(model=None, optimizer=None, loader=None, **options):
    """A trainer of a small model; alone."""
    model = model or nn.Linear(3, 1)
    loader = DataLoader(DATA, 4) if loader is None else loader
    return Trainer(model, optimizer or sgd(model), loader, **options)


def loader_with(sampler):
    """A loader whose sampler is the script's own."""
    return DataLoader(DATA, 4, sampler=sampler)


LINEAR, OTHER = nn.Linear(3, 1), nn.Linear(3, 1)
PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(LINEAR))
REFUSED = {
    "closure": ({"optimizer": torch.optim.LBFGS(LINEAR.parameters())}, "optimizer LBFGS evaluates"),
    "plateau": ({"scheduler": PLATEAU}, "ReduceLROnPlateau needs a metric: give it as extra_state"),
    "interval": ({"scheduler_interval": "batch"}, "scheduler_interval='batch': must be 'epoch' or"),
    "option": ({"clipping": 1}, "unexpected keyword argument 'clipping'"),
    "micro_batch_size": (
        {"micro_batch_size": 0},
        "micro_batch_size=0: must be a whole number >= 1",
    ),
    "equal, but how": ({"equal_micro_batches": True}, "say how large with micro_batch_size"),
    "equal, but not a part": (
        {"equal_micro_batches": True, "micro_batch_size": 3},
        "the global batch of 4 samples must be a multiple of micro_batch_size=3",
    ),
    "accumulation": ({"accumulation_steps": 1.5}, "accumulation_steps=1.5: must be a whole number"),
    "foreign": ({"optimizer": sgd(OTHER), "model": LINEAR}, "parameters that are not the model's"),
    "taken": ({"extra_state": {"model": OTHER}}, "extra_state: model: kept already"),
    "sparse": (
        {"model": nn.Sequential(nn.Embedding(3, 3, sparse=True))},
        "model.0: sparse gradients are not reduced: use sparse=False",
    ),
    "no batch size": (
        {"loader": DataLoader(DATA, batch_size=None)},
        "give it the global batch size",
    ),
    "batch sampler": (
        {"loader": DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False))},
        "give it the global batch size",
    ),
    "weighted": (
        {"loader": loader_with(WeightedRandomSampler([1.0] * 12, 12))},
        "sampler is a WeightedRandomSampler: must be none",
    ),
    "replacement": ({"loader": loader_with(RandomSampler(DATA, replacement=True))}, "must be none"),
    "part": ({"loader": loader_with(RandomSampler(DATA, num_samples=5))}, "must be none"),
    "list": ({"loader": loader_with([3, 1, 2])}, "sampler is a list: must be none"),
    "stream": ({"loader": DataLoader(Stream(), 4, num_workers=1)}, "set num_workers=0"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_before_training(arguments, message):
    """At the trainer's construction, in one line."""
    arguments = {**arguments}
    if "optimizer" in arguments:
        arguments.setdefault("model", LINEAR)
    with pytest.raises(UserError) as caught:
        new_trainer(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def first_step(trainer, model, loss):
    """Take steps until one is refused."""
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            trainer.step(lambda x: loss(model, x), x)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, x: model(x), "the loss has shape (4, 1): must be a scalar"),
        (lambda model, x: (model(x).mean(), -1.0), "the weight of a loss is -1.0: must be >= 0"),
    ],
)
def test_a_loss_that_cannot_be_averaged_is_refused(loss, message):
    """What the loss function gives must be a scalar mean and a weight that is not negative."""
    model = nn.Linear(3, 1)
    with pytest.raises(UserError) as caught:
        first_step(new_trainer(model), model, loss)
    assert message in str(caught.value)


def test_a_forgotten_step_is_noticed():
    """A loop that takes batches without stepping is told at its second batch."""
    trainer = new_trainer()
    with pytest.raises(UserError, match=r"trainer\.step .*was not called for the last batch"):  # noqa: PT012
        for _ in trainer.epochs(1):
            for _ in trainer.batches():
                pass


def test_batches_are_taken_inside_an_epoch():
    """Outside the loop over epochs there is no membership to share a batch with."""
    trainer = new_trainer()
    with pytest.raises(UserError, match=r"inside the loop over trainer\.epochs"):
        next(trainer.batches())
    with pytest.raises(UserError, match="no step is under way"):
        trainer.apply()


def test_alone_the_trainer_is_the_leader_of_one():
    """A script that runs by itself needs no case of its own."""
    trainer, seen = new_trainer(), []
    for epoch in trainer.epochs(2):
        for (x,) in trainer.batches():
            seen.append((epoch, len(x), trainer.applied_steps))
            trainer.step(lambda x: x.sum() * next(iter(trainer._model.parameters())).sum(), x)
    assert seen == [(0, 4, 0), (0, 4, 1), (0, 4, 2), (1, 4, 3), (1, 4, 4), (1, 4, 5)]
    assert trainer.is_leader
    assert trainer.num_workers == 1


def test_an_epoch_can_be_left_early():
    """`break` ends the epoch; the next one starts at its first step."""
    model = nn.Linear(3, 1)
    trainer = new_trainer(model, loader=DataLoader(DATA, 4))
    firsts = []
    for _ in trainer.epochs(2):
        for (x,) in trainer.batches():
            firsts.append(x[0].tolist())
            trainer.step(lambda x: model(x).mean(), x)
            break
    assert firsts == [DATA[0][0].tolist()] * 2
    assert trainer.applied_steps == 2


def test_a_loss_over_nothing_leaves_the_model_alone():
    """All tokens masked: no gradient, no update, also with a loss scaler."""
    for scaler in (None, torch.amp.GradScaler("cpu")):
        model = nn.Linear(3, 1)
        before = [p.clone() for p in model.parameters()]
        trainer = new_trainer(model, sgd(model, weight_decay=0.1), scaler=scaler)
        first_step(trainer, model, lambda model, x: (model(x).mean() * torch.nan, 0.0))
        assert trainer.applied_steps == 3
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_accumulation_bounds_the_micro_batches():
    """With accumulation no forward pass sees more samples than the loader's batch size."""
    model, sizes = nn.Linear(3, 1), []
    trainer = new_trainer(model, accumulation_steps=3)
    first_step(trainer, model, lambda model, x: sizes.append(len(x)) or model(x).mean())
    assert sizes == [4, 4, 4]
    assert trainer.applied_steps == 1


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "LOCAL_WORLD_SIZE"])
def test_processes_of_another_launcher_do_not_each_train_alone(monkeypatch, variable):
    """They would write the same files and waste the machines: an error names what to use."""
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.setenv(variable, "2")
    with pytest.raises(UserError, match=f"{variable} is set: start the script with hetero-hvd run"):
        open_collective(is_unwanted=lambda: False)
