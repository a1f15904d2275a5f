"""What a script may give to trainer.evaluate; all else is refused in one line."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    WeightedRandomSampler,
)

from hetero_hvd import Trainer, UserError

DATA = TensorDataset(torch.randn(12, 3))


def new_trainer():
    """A trainer of a small model; alone."""
    model = nn.Linear(3, 1)
    return Trainer(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(DATA, 4))


METRICS = {
    "pairs": (
        lambda *_: {"a": (1.0, 2, 3)},
        "metrics returned a tuple for 'a': must return",
    ),
    "empty": (lambda *_: {}, "metrics returned an empty dict: must return a dict of name to mean"),
    "other names": (
        lambda x: {str(float(x.sum())): 1.0},
        "for another: must be the same names for each, on all workers",
    ),
    "own weight": (lambda *_: {"a": (0.5, -1)}, "metrics returned the weight -1: must be a number"),
    "vector": (lambda x: {"a": x}, "metrics returned a tensor of shape (4, 3) for 'a': must"),
    "None": (lambda *_: {"a": None}, "metrics returned None for 'a': must return a dict"),
    "text": (lambda *_: {"a": "0.5"}, "metrics returned a str for 'a'"),
    "number": (lambda *_: 0.5, "metrics returned a float: must return a dict of name to mean"),
    "nothing": (lambda *_: None, "metrics returned None: must return a dict"),
    "names": (lambda *_: {1: 0.5}, "metrics returned the name 1: must return a dict"),
    "weight": (
        lambda *_: ({"a": 0.5}, -1),
        "metrics returned the weight -1: must be a number",
    ),
    "weights": (lambda x: ({"a": 0.5}, x), "the weight a tensor of shape (4, 3): must be a number"),
    "no function": (DATA[0][0], "is a tensor of shape (3,): must be a function: trainer.evaluate("),
}
SETS = {
    "list": ([1], "the loader is a list: must be a torch.utils.data.DataLoader"),
    "weighted": (
        DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0], 1)),
        "leaves samples out or takes them several times: to evaluate, leave it out",
    ),
    "nothing": (DataLoader([], 4), "the loader to evaluate has no samples"),
}


@pytest.mark.parametrize(
    ("metrics", "loader", "message"),
    [(metrics, DataLoader(DATA, 4), message) for metrics, message in METRICS.values()]
    + [(lambda *_: {"a": 1.0}, loader, message) for loader, message in SETS.values()],
    ids=[*METRICS, *SETS],
)
def test_an_evaluation_that_cannot_be_averaged_is_refused(metrics, loader, message):
    """Metrics must be numbers by name, and the set one that every worker can take a part of."""
    trainer = new_trainer()
    next(trainer.epochs(1))
    with pytest.raises(UserError) as caught:
        trainer.evaluate(metrics, loader)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_metric_may_have_a_weight_of_its_own():
    """As a mean over one class has; where there is none in a batch, it tells nothing."""
    trainer = new_trainer()
    next(trainer.epochs(1))
    weights = iter([1, 0, 3])

    def metrics(x):
        weight = next(weights)
        return {"all": float(len(x)), "one": (10.0 * weight if weight else math.nan, weight)}

    found = trainer.evaluate(metrics, DataLoader(DATA, 5))
    assert found == {"all": (5 * 5 + 5 * 5 + 2 * 2) / 12, "one": (10 + 3 * 30) / 4}
    assert math.isnan(trainer.evaluate(lambda _: {"a": (math.nan, 0)}, DataLoader(DATA, 5))["a"])


def test_numbers_of_all_kinds_are_metrics():
    """Python's, NumPy's and tensors of one element, of any type."""
    trainer = new_trainer()
    next(trainer.epochs(1))
    values = {"a": 1, "b": np.float32(2), "c": torch.tensor(3), "d": torch.tensor([4.0]), "e": True}
    found = trainer.evaluate(lambda x: (values, torch.tensor(len(x))), DataLoader(DATA, 5))
    assert found == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 1.0}
