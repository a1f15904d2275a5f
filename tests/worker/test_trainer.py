"""What the trainer refuses, in one line that says what to do; and what it leaves alone."""

from __future__ import annotations

import threading

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import (
    DataLoader,
    TensorDataset,
)

from hetero_hvd import Trainer, UserError
from hetero_hvd.worker.recovery import elastic_state as elastic

DATA = TensorDataset(torch.randn(12, 3))


def sgd(model, **options):
    """Any optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def new_trainer(model=None, optimizer=None, loader=None, **options):
    """A trainer of a small model; alone."""
    model = model or nn.Linear(3, 1)
    loader = DataLoader(DATA, 4) if loader is None else loader
    return Trainer(model, optimizer or sgd(model), loader, **options)


LINEAR, OTHER = nn.Linear(3, 1), nn.Linear(3, 1)
PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(LINEAR))
REFUSED = {
    "closure": ({"optimizer": torch.optim.LBFGS(LINEAR.parameters())}, "optimizer LBFGS evaluates"),
    "plateau": ({"scheduler": PLATEAU}, "ReduceLROnPlateau needs a metric: give it as extra_state"),
    "interval": ({"scheduler_interval": "batch"}, "scheduler_interval='batch': must be 'epoch' or"),
    "option": ({"clipping": 1}, "Trainer has no option clipping: did you mean clip?"),
    "argument": ({"schedular": None}, "no option schedular: did you mean scheduler?"),
    "clip": ({"clip": 1.0}, "clip=1.0: must be a function of the parameters, such as lambda"),
    "no option": ({"xyzzy": 1}, "no option xyzzy: there are scheduler, "),
    "swapped": (
        {"model": sgd(LINEAR), "optimizer": LINEAR},
        "the model is a SGD: must be a torch.nn.Module",
    ),
    "wrapped": ({"model": nn.DataParallel(LINEAR)}, "a DataParallel: give what it wraps"),
    "class": (
        {"optimizer": torch.optim.SGD},
        "the optimizer is the class SGD: must be a torch.optim.Optimizer",
    ),
    "rows": ({"loader": [[1.0]]}, "the loader is a list: must be a torch.utils.data.DataLoader"),
    "dataset": ({"loader": DATA}, "the loader is a TensorDataset: must be a torch.utils.data"),
    "no function": ({"after_step": 3}, "after_step is an int: must be a function"),
    "no scheduler": ({"scheduler": 0.9}, "the scheduler is a float: must be of torch.optim"),
    "other's scheduler": (
        {"scheduler": torch.optim.lr_scheduler.StepLR(sgd(LINEAR), 1)},
        "the scheduler belongs to another optimizer: build it from the one",
    ),
    "micro_batch_size": (
        {"micro_batch_size": 0},
        'micro_batch_size=0: must be a whole number >= 1 or "auto"',
    ),
    "equal, but how": ({"equal_micro_batches": True}, "say how large with micro_batch_size"),
    "equal, but not a part": (
        {"equal_micro_batches": True, "micro_batch_size": 3},
        "the global batch of 4 samples must be a multiple of micro_batch_size=3",
    ),
    "accumulation": ({"accumulation_steps": 1.5}, "accumulation_steps=1.5: must be a whole number"),
    "foreign": (
        {"optimizer": sgd(OTHER), "model": LINEAR},
        "none of the model's parameters: build it from this model, SGD(model.parameters()",
    ),
    "partly foreign": (
        {"optimizer": sgd(nn.ModuleList([LINEAR, OTHER])), "model": LINEAR},
        "parameters that are not the model's: give a model that holds them all",
    ),
    "taken": ({"extra_state": {"model": OTHER}}, "extra_state: model: kept already"),
    "sparse": (
        {"model": nn.Sequential(nn.Embedding(3, 3, sparse=True))},
        "model.0: sparse gradients are not reduced: use sparse=False",
    ),
    "no batch size": (
        {"loader": DataLoader(DATA, batch_size=None)},
        "give it the global batch size",
    ),
    "batches as samples": (
        {"loader": DataLoader(DATA, batch_size=None, sampler=[[0, 1], [2]])},
        "a sampler that gives batches as batch_sampler=",
    ),
    "nothing": ({"loader": DataLoader([], 4)}, "the training loader has no samples"),
    "less than a step": (
        {"loader": DataLoader(DATA, 16, drop_last=True)},
        "12 samples are less than one step of 16, and drop_last=True leaves them out",
    ),
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


class Output(dict):
    """As Hugging Face's models give."""

    loss = torch.zeros((), requires_grad=True)


LOSSES = {
    "output": (lambda *_: Output(), "returned an Output: return its .loss"),
    "None": (lambda *_: None, "returned None: return the mean loss (is there a `return`?)"),
    "float": (lambda model, x: model(x).mean().item(), "a float: return the tensor itself, not"),
    "dict": (lambda model, x: {"loss": model(x).mean()}, "a dict: return the one tensor of it"),
    "list": (lambda model, x: [model(x).mean()], "a list: must be a scalar tensor, the mean"),
    "three": (lambda model, x: (model(x).mean(), 1, 2), "a tuple: must be a scalar tensor"),
    "vector": (lambda model, x: model(x), "the loss has shape (4, 1): must be a scalar"),
    "constant": (lambda _, x: x.mean(), "the loss has no gradient: compute it from the model"),
    "the other way round": (
        lambda model, x: (2.0, model(x).mean()),
        "returned (weight, loss): must",
    ),
    "complex": (
        lambda model, x: model(x).mean() * 1j,
        "the loss is complex: must be a real number",
    ),
    "negative": (lambda model, x: (model(x).mean(), -1.0), "weight of a loss is -1.0: must be >="),
    "weights": (lambda model, x: (model(x).mean(), x), "weight of a loss is a tensor of shape"),
    "infinite": (lambda model, x: (model(x).mean(), torch.inf), "weight of a loss is inf: must"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_that_cannot_be_averaged_is_refused(loss, message):
    """What the loss function gives must be a scalar mean and a weight that is not negative."""
    model = nn.Linear(3, 1)
    with pytest.raises(UserError) as caught:
        first_step(new_trainer(model), model, loss)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_loss_function_comes_first():
    """A batch alone is no function."""
    trainer = new_trainer()
    with pytest.raises(UserError, match=r"first argument is a tensor of shape \(4, 3\): must be a"):  # noqa: PT012
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.step(x)


def test_a_forgotten_step_is_noticed():
    """A loop that takes batches without stepping is told at its second batch."""
    trainer = new_trainer()
    with pytest.raises(UserError, match=r"trainer\.step .*was not called for the last batch"):  # noqa: PT012
        for _ in trainer.epochs(1):
            for _ in trainer.batches():
                pass


STATELESS = {"number": 9.0, "dict": {"best": 9.0}, "none": None}


@pytest.mark.parametrize("part", STATELESS.values(), ids=STATELESS.keys())
def test_further_state_has_a_state_dict(part):
    """What has none cannot be copied, nor kept."""
    with pytest.raises(UserError, match=r"extra_state\['best'\] is .*: must have state_dict\(\)"):
        new_trainer(extra_state={"best": part})


def test_forgotten_batches_are_noticed():
    """An epoch that ends without its batches would leave each worker with a model of its own."""
    trainer, model = new_trainer(), nn.Linear(3, 1)
    with pytest.raises(UserError, match=r"epoch 0 ended without a step: take the batches from"):  # noqa: PT012
        for _ in trainer.epochs(2):
            model(DATA[0][0]).sum().backward()


EPOCHS_WITHOUT_STEPS = {
    "evaluation only": lambda _: "break",
    "left at once": lambda trainer: next(trainer.batches(), None),
    "nothing left": lambda trainer: setattr(trainer._state.position, "step_in_epoch", 3),
}


@pytest.mark.parametrize("kind", EPOCHS_WITHOUT_STEPS)
def test_an_epoch_may_be_without_steps(kind):
    """Where the script leaves the loops itself, or the epoch was over before."""
    trainer = new_trainer()
    for _ in trainer.epochs(2):
        if EPOCHS_WITHOUT_STEPS[kind](trainer) == "break":
            break
    assert trainer.applied_steps == 0


@pytest.mark.parametrize("number", [-1, 2.5, True, None, "3"])
def test_epochs_are_a_whole_number(number):
    """Whatever else is given is refused before the first one."""
    with pytest.raises(UserError, match=r"trainer\.epochs\(.*\): must be a whole number >= 0"):
        next(new_trainer().epochs(number))


def test_epochs_that_are_trained_already_are_said(caplog):
    """The number is that of the whole training, not a further one."""
    model = nn.Linear(3, 1)
    trainer = new_trainer(model=model)
    for _ in range(2):
        for _ in trainer.epochs(2):
            for (x,) in trainer.batches():
                trainer.step(lambda x: model(x).square().mean(), x)
    assert trainer.applied_steps == 6
    assert caplog.text.count("asked for: 2 in all: nothing is left to do") == 1


def test_batches_are_taken_inside_an_epoch():
    """Outside the loop over epochs there is no membership to share a batch with."""
    trainer = new_trainer()
    with pytest.raises(UserError, match=r"belong into the loop over trainer.epochs"):
        next(trainer.batches())
    with pytest.raises(UserError, match="no step is under way"):
        trainer.apply()


def test_batches_are_not_taken_after_the_epochs():
    """They would be those of an epoch that nobody asked for."""
    trainer = new_trainer()
    for _ in trainer.epochs(0):
        pass
    with pytest.raises(UserError, match=r"trainer\.batches\(\) belongs into the loop over"):
        next(trainer.batches())


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


def test_before_the_loop_there_is_one_leader(monkeypatch):
    """Asking for the leader admits the worker: what is to be done once is done once there too."""
    admitted = {}
    monkeypatch.setattr(elastic, "init", lambda **_: admitted[threading.get_ident()])

    def ask(context):
        admitted[threading.get_ident()] = context
        trainer = new_trainer()
        found = trainer.is_leader, trainer.num_workers
        assert [len(*next(trainer.batches())) for _ in trainer.epochs(1)] != [0]
        return found

    assert run_together(Hub(3), ask) == [(True, 3), (False, 3), (False, 3)]


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("place", ["in the loop", "after an epoch", "after an evaluation"])
def test_a_scheduler_is_advanced_by_the_trainer_alone(interval, place):
    """The line of the plain script that was left in would make it twice as fast."""
    model = torch.nn.Linear(2, 1)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = DataLoader(TensorDataset(torch.ones(8, 2)), 4)
    schedule = {"scheduler": scheduler, "scheduler_interval": interval}
    trainer = Trainer(model, optimizer, loader, **schedule)

    def train():
        for _ in trainer.epochs(2):
            for (x,) in trainer.batches():
                trainer.step(lambda x: model(x).mean(), x)
                if place == "in the loop":
                    scheduler.step()
            if place == "after an evaluation":
                trainer.evaluate(lambda x: {"output": model(x).mean()}, loader)
            if place != "in the loop":
                scheduler.step()

    with pytest.raises(UserError, match=r"has called the scheduler's step\(\)"):
        train()


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_schedule_that_is_shorter_than_the_training_is_named(interval):
    """OneCycleLR raises behind its last step."""
    model = torch.nn.Linear(2, 1)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=2)
    loader = DataLoader(TensorDataset(torch.ones(8, 2)), 4)
    schedule = {"scheduler": scheduler, "scheduler_interval": interval}
    trainer = Trainer(model, optimizer, loader, **schedule)

    def train():
        for _ in trainer.epochs(4):
            for (x,) in trainer.batches():
                trainer.step(lambda x: model(x).mean(), x)

    with pytest.raises(UserError, match=rf"scheduler OneCycleLR: Tried .* is in {interval}s"):
        train()


def test_a_second_step_of_one_batch_is_refused():
    """It would reduce gradients that nobody else has."""
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.ones(8, 2)), 4)
    trainer = Trainer(model, sgd(model), loader)
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            trainer.step(lambda x: model(x).mean(), x)
            with pytest.raises(UserError, match="once for each batch"):
                trainer.step(lambda x: model(x).mean(), x)
            break
        break
