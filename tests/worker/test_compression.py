"""Error feedback owes no more than the last rounding, whatever the sums are scaled by."""

from __future__ import annotations

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

NUM_STEPS = 24
GRADIENT = torch.tensor([1 / 3, 1 / 7, -1 / 11, 1e-3 / 13])


def applied_sum(context, weights, *, compression="fp16-feedback", scaler=None, **options):
    """What the optimizer sees in all steps together; each step's weights are those given."""
    model = nn.Linear(4, 1, bias=False)
    total = torch.zeros(4, dtype=torch.float64)
    data = TensorDataset(torch.repeat_interleave(torch.tensor(weights), 4))
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        DataLoader(data, 4),
        clip=lambda parameters: total.add_(parameters[0].grad[0]),
        compression=compression,
        scaler=scaler,
        **options,
    )
    trainer._state._context = context

    def loss(weight):
        return (model.weight[0] * GRADIENT).sum(), weight.sum()

    for _ in trainer.epochs(1):
        for (mine,) in trainer.batches():
            trainer.step(loss, mine)
    return total


CASES = {
    "samples": ([1.0], {}),
    "weights that vary": ([1.0, 100.0, 7.0], {}),
    "rare small weights": ([50.0] * 7 + [0.5], {}),
    "a loss scale that grows": ([1.0], {"growth_interval": 2}),
    "both": ([1.0, 40.0], {"growth_interval": 5}),
}


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_what_rounding_loses_is_made_up_for(name, bound):
    """The sum over all steps is exact but for a few roundings of what is under way."""
    weights, scale = CASES[name]
    weights = (weights * NUM_STEPS)[:NUM_STEPS]

    def train(context):
        options = {"staleness_bound": bound, "staleness_warmup_steps": 0, "lookahead": False}
        if scale:
            options["scaler"] = torch.amp.GradScaler("cpu", init_scale=4.0, **scale)
        return applied_sum(context, weights, **options)

    one_rounding = GRADIENT.abs() * 2.0**-11
    for total in run_together(Hub(2), train):
        error = (total - NUM_STEPS * GRADIENT.double()).abs()
        assert (error <= 4 * (1 + bound) * one_rounding).all()
