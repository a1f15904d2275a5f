"""One trainer trains at a time; two models are trained by one trainer."""

from __future__ import annotations

import gc

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError

X = torch.linspace(-1, 1, 36).view(12, 3)
LOADER = DataLoader(TensorDataset(X), 4)


def new_trainer(model=None):
    """A trainer and how it takes a step."""
    model = model or nn.Linear(3, 1)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)
    return trainer, lambda x: trainer.step(lambda x: model(x).square().mean(), x)


def train(model=None, num_epochs=1):
    """From the beginning to the end."""
    trainer, step = new_trainer(model)
    for _ in trainer.epochs(num_epochs):
        for (x,) in trainer.batches():
            step(x)
    return trainer


@pytest.mark.parametrize("way", ["epochs", "batches", "step"])
def test_a_second_trainer_is_refused_by_name(way):
    """At its first use within the other's epochs."""
    first, _ = new_trainer()
    second, step = new_trainer()
    ways = {
        "epochs": lambda: next(second.epochs(1)),
        "batches": lambda: next(second.batches()),
        "step": lambda: step(X),
    }
    for _ in first.epochs(1):
        with pytest.raises(
            UserError, match=r"another Trainer is in the middle .*trainer.add_model"
        ):
            ways[way]()
        break


def test_trainers_may_follow_each_other():
    """Also over one model, and after a loop that was left."""
    model = nn.Linear(3, 1)
    assert train(model).applied_steps == 3
    first, step = new_trainer(model)
    for _ in first.epochs(1):
        for (x,) in first.batches():
            step(x)
            break
        break
    assert train(model).applied_steps == 3
    assert train(num_epochs=2).applied_steps == 6


def test_a_forgotten_trainer_blocks_nobody():
    """A cell of a notebook that failed in the middle, and was run again."""
    trainer, _ = new_trainer()
    epochs = trainer.epochs(2)
    next(epochs)
    del trainer, epochs
    gc.collect()
    assert train().applied_steps == 3


def adversaries():
    """Two models that are trained against each other."""
    torch.manual_seed(0)
    return nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def in_plain_torch():
    """Both take a step at a time, from the same batch."""
    generator, discriminator = adversaries()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, discriminator)]
    for (real,) in LOADER:
        fake = generator(real * 0.1)
        wanted = bce(discriminator(fake), torch.ones(len(real), 1))
        of_generator = torch.autograd.grad(wanted, list(generator.parameters()))
        optimizers[1].zero_grad()
        told = bce(discriminator(real), torch.ones(len(real), 1))
        (told + bce(discriminator(fake.detach()), torch.zeros(len(real), 1))).backward()
        for parameter, gradient in zip(generator.parameters(), of_generator, strict=True):
            parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    return nn.utils.parameters_to_vector([*generator.parameters(), *discriminator.parameters()])


def test_adversaries_are_trained_by_one_trainer():
    """As docs/guide/trainer.md shows: the same steps as with two optimizers in one process."""
    pairs = [adversaries() for _ in range(2)]

    def work(context):
        generator, discriminator = pairs[context.settings.worker.slot]
        both = nn.ModuleList([generator, discriminator])
        groups = [{"params": generator.parameters()}, {"params": discriminator.parameters()}]
        trainer = Trainer(both, torch.optim.SGD(groups, lr=0.1), LOADER)
        trainer._state._context = context

        def loss(real):
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(real * 0.1)
            fixed = {name: p.detach() for name, p in discriminator.named_parameters()}
            judged = torch.func.functional_call(discriminator, fixed, fake)
            told = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
            return bce(judged, ones) + told

        for _ in trainer.epochs(1):
            for (mine,) in trainer.batches():
                trainer.step(loss, mine)
        return nn.utils.parameters_to_vector(both.parameters())

    for found in run_together(Hub(2), work):
        torch.testing.assert_close(found, in_plain_torch())
