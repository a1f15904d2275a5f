"""Sixty steps in float32 come to the same parameters with a state in parts and without."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

WORKERS, EPOCHS, STEPS, BATCH = 3, 15, 4, 6
LARGEST_DIFFERENCE = 1e-6

torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
FIRST = [each.detach() for each in INITIAL.parameters()]
X = torch.randn(STEPS * BATCH, 16)

OPTIMIZERS = {
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adam, fused, amsgrad": partial(torch.optim.Adam, lr=0.01, fused=True, amsgrad=True),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.003, momentum=0.5),
}


def train(context, build, shards):
    """Sixty steps with clipped gradients and a schedule; gives the parameters."""
    model = copy.deepcopy(INITIAL)
    optimizer = build(model.parameters())
    trainer = Trainer(
        model,
        optimizer,
        DataLoader(TensorDataset(X), BATCH, shuffle=True),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS),
        clip=lambda parameters: clip_grad_norm_(parameters, 0.1),
        shard_optimizer=shards,
    )
    trainer._state._context = context
    parts = trainer._state._kept.shards
    for _ in trainer.epochs(EPOCHS):
        for (x,) in trainer.batches():
            trainer.step(lambda x: (model(x) - x).square().mean(), x)
    assert trainer.applied_steps == EPOCHS * STEPS
    if shards:  # nobody has all of it
        assert 0 < parts.slices.num_blocks < parts._layout.num_blocks
    return [each.detach() for each in model.parameters()]


BUILDS = [
    pytest.param(build, marks=() if name in ("AdamW", "SGD with momentum") else pytest.mark.matrix)
    for name, build in OPTIMIZERS.items()
]


@pytest.mark.parametrize("build", BUILDS, ids=OPTIMIZERS)
def test_sixty_steps_are_those_of_the_whole(build):
    """Of each parameter, relative to its norm, on each worker."""
    plain, parts = (
        run_together(Hub(WORKERS), partial(train, build=build, shards=shards))
        for shards in (False, True)
    )
    for model in parts:
        for value, wanted, first in zip(model, plain[0], FIRST, strict=True):
            difference = (value - wanted).norm() / wanted.norm()
            assert float(difference) <= LARGEST_DIFFERENCE
            assert float((wanted - first).norm() / first.norm()) > 0.01, "nothing was trained"
