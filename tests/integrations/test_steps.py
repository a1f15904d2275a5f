"""What other packages' trainers ask of ours."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.integrations.steps import Steps
from hetero_hvd.worker.micro_batch.split import LossParts

MODES = {
    "in one pass": {},
    "in micro-batches": {"micro_batch_size": 3},
    "in grains": {"reproducible": True, "grain": 4},
}


@pytest.mark.parametrize("weight", [None, 0.0], ids=["all count", "no loss counts"])
@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_what_a_loss_function_counts_is_summed_over_the_step(options, weight):
    """Of each step anew, also of samples whose loss has no weight."""
    model = torch.nn.Linear(3, 1)
    data = TensorDataset(torch.randn(24, 3), torch.arange(24.0).unsqueeze(1))
    steps = Steps(
        model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(data, 8), **options
    )

    def loss(x, y):
        mean = mse_loss(model(x), y)
        return LossParts(mean, float(len(x)) if weight is None else weight, float(y.sum()))

    found = []
    for _ in steps.epochs(1):
        for x, y in steps.batches():
            steps.step(loss, x, y)
            found.append(steps.last_counted)
    assert found == [sum(range(first, first + 8)) for first in (0, 8, 16)]
