"""What is trained beside the trainer's steps is told of once, and nothing else is."""

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

LOADER = DataLoader(TensorDataset(torch.ones(12, 3)), 4)
WORDS = "is stepped outside of the trainer's steps"


@pytest.fixture(autouse=True)
def restore_torch():
    """The reproducible mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def linear():
    """A small model, the same on each worker: threads share torch's generator."""
    model = nn.Linear(3, 1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def stepped(parameters, optimizer=torch.optim.SGD):
    """One step of an optimizer by hand."""
    parameters = list(parameters)
    for each in parameters:
        each.grad = torch.ones_like(each)
    optimizer(parameters, lr=0.1).step()


def beside(_, step):
    """A critic with its own optimizer, in each step."""
    if step == "body":
        stepped(linear().parameters(), torch.optim.AdamW)


def temperature(_, step):
    """A single number that is learnt."""
    if step == "body":
        stepped([nn.Parameter(torch.zeros(()))])


def second(_, step):
    """Another trainer, one after the other."""
    if step == "end":
        model = linear()
        for _ in run(model, Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)):
            pass


def outside(_, step):
    """Before and after the training."""
    if step in ("start", "end"):
        stepped(linear().parameters())


def added(trainer, step):
    """A further model that the trainer knows."""
    if step == "start":
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer.critic = model, trainer.add_model("critic", model, optimizer)
    elif step == "body":
        model, steps = trainer.critic
        steps.step(lambda x: model(x).mean(), trainer.batch)


def nothing(*_):
    """The trainer alone."""


CASES = {
    "nothing else": (nothing, 2, 0),
    "a critic": (beside, 2, 2),
    "a critic on one worker alone": (beside, 1, 0),
    "a temperature": (temperature, 2, 2),
    "a further model": (added, 2, 0),
    "a second trainer": (second, 1, 0),
    "before and after": (outside, 2, 0),
}


def run(model, trainer):
    """The steps of one epoch."""
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches():
            trainer.batch = batch
            yield "body"
            trainer.step(lambda x: model(x).mean(), batch)


@pytest.mark.parametrize(("act", "num_workers", "num_told"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("way", ["plain", "scaled", "reproducible"])
def test_who_trains_beside_the_trainer_is_told_so(act, num_workers, num_told, way, caplog):
    """Once on each worker, whatever it trains; the trainer's own steps say nothing."""

    def work(context):
        model = linear()
        options = {
            "plain": dict,
            "scaled": lambda: {"scaler": torch.amp.GradScaler("cpu")},
            "reproducible": lambda: {"reproducible": True, "grain": 2},
        }[way]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, LOADER, **options)
        trainer._state._context = context
        act(trainer, "start")
        for step in run(model, trainer):
            act(trainer, step)
        act(trainer, "end")

    run_together(Hub(num_workers), work)
    assert caplog.text.count(WORDS) == num_told
