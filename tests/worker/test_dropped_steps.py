"""A step that is not applied leaves the buffers alone, and what the script does to them later."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

X = torch.linspace(-1, 1, 24).reshape(8, 3)
MODES = {"plain": {}, "reproducible": {"reproducible": True, "grain": 2}}


@pytest.fixture(autouse=True)
def restore_torch():
    """The mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def new_trainer(mode):
    """With running statistics."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X), 4)
    return Trainer(model, optimizer, loader, **MODES[mode]), model, loader


@pytest.mark.parametrize("mode", MODES)
def test_after_a_skipped_step_the_buffers_are_the_scripts(mode):
    """What it writes into them, as `update_bn` does, is still there after an evaluation."""
    trainer, model, loader = new_trainer(mode)
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            assert math.isnan(trainer.step(lambda x: model(x).mean() * math.nan, x))
        assert model[0].running_mean.tolist() == [0.0] * 3
        model[0].running_mean.fill_(5.0)
        trainer.evaluate(lambda x: {"out": model(x).mean()}, loader)
        assert model[0].running_mean.tolist() == [5.0] * 3
        break


@pytest.mark.parametrize("mode", MODES)
def test_a_step_begun_and_left_has_changed_nothing(mode):
    """The script leaves in the midst of its micro-batches."""
    trainer, model, _ = new_trainer(mode)
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches():
            for (piece,) in trainer.micro_batches(x):
                model(piece + 1)
                break
            assert model[0].running_mean.abs().sum() > 0
            break
    assert model[0].running_mean.tolist() == [0.0] * 3
