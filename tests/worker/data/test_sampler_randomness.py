"""Where a sampler's random numbers come from, and whose they leave alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fake_accelerator import FakeTorch
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hetero_hvd import Trainer
from hetero_hvd.worker import accelerator
from hetero_hvd.worker.data.samplers import _drawing

SIZE = 20
DATA = [float(number) for number in range(SIZE)]


class Shuffled(Sampler):
    """Draws from torch's global generator."""

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        return iter(torch.randperm(len(self)))


DRAWING = {
    "weighted": partial(WeightedRandomSampler, [1.0] * SIZE, 4),
    "with replacement": partial(RandomSampler, range(SIZE), True),
    "shuffle=True": lambda **more: DataLoader(DATA, shuffle=True, **more).sampler,
    "fewer": partial(RandomSampler, range(SIZE), num_samples=5),
    "subset": partial(SubsetRandomSampler, range(3, 9)),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_a_generator_without_effect_is_told_once(caplog, kind):
    """Not at each epoch, and not where there is none; an evaluation has no order to draw."""
    for more in ({}, {"generator": torch.Generator()}):
        sampler = DRAWING[kind](**more)
        drawing = _drawing(sampler, 0, is_batched=False, is_for_training=True)
        drawing.draw(0), drawing.draw(1)
        assert caplog.text.count("generator= has no effect") == len(more)
        if kind in ("shuffle=True", "subset"):
            _drawing(sampler, 0, is_batched=False, is_for_training=False).draw(0)
            assert caplog.text.count("generator= has no effect") == len(more)


def test_trying_a_sampler_leaves_the_random_numbers_of_a_device(monkeypatch):
    """A model that begins the device is moved first: seeds that wait for it would be its own."""
    fake = FakeTorch()
    monkeypatch.setattr(accelerator, "torch", fake)
    module = fake.module

    def seed(number):
        if module.is_initialized():
            module.states = [number] * 2
        else:
            module.seeds.append(number)  # as CUDA does: it holds as soon as that is begun

    class Model(nn.Linear):
        def to(self, *_, **__):
            """Begins the device, which has waited with its seeds."""
            module.states = [module.seeds[-1] if module.seeds else "the script's"] * 2
            return self

    monkeypatch.setattr(module, "manual_seed_all", seed)
    model = Model(1, 1)
    Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(DATA, 8, sampler=Shuffled())
    )
    assert module.states == ["the script's"] * 2
