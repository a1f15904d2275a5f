"""Samples are read where the loader says, whatever happens in between."""

from __future__ import annotations

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hetero_hvd import Trainer

pytestmark = pytest.mark.usefixtures("_torch_is_put_back")

SIZE, BATCH = 24, 8


class Opened(Dataset):
    """Readable only where `open_it` was called."""

    rows = None

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.rows[index]


def open_it(_number):
    """The script's `worker_init_fn`, as torch's documentation has it."""
    get_worker_info().dataset.rows = torch.arange(3.0 * SIZE).reshape(SIZE, 3) / SIZE


CASES = {
    "a fault": ({}, (0, "totals.0", 2, "before")),
    "a fault, reproducible": ({"reproducible": True, "grain": 2}, (0, "grains", 2, "before")),
    "a fault, wait-free": ({"wait_free": True, "micro_batch_size": 2}, (0, "totals.0", 2, "after")),
    "no memory, wait-free": ({"wait_free": True, "micro_batch_size": 2}, None),
    "an evaluation that fails": ({}, (0, "metrics", 1, "before")),
}


@pytest.mark.parametrize("case", CASES)
def test_samples_are_read_in_loader_processes_only(case):
    """A part that is taken again, or anew after a fault, comes from there too."""
    options, fault = CASES[case]
    hub = Hub(2, [fault] if fault else [])

    def train(context):
        model = nn.Linear(3, 1)
        loader = DataLoader(Opened(), BATCH, num_workers=1, worker_init_fn=open_it)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.ones(4), model.parameters())
        trainer, calls = Trainer(model, optimizer, loader, **options), []
        trainer._state._context = context

        def loss(x):
            calls.append(len(x))
            if case == "no memory, wait-free" and len(calls) == 2:
                raise torch.OutOfMemoryError("as the test wants it")
            return model(x).square().mean()

        for _ in trainer.epochs(1):
            for x in trainer.batches():
                trainer.step(loss, x)
            found = trainer.evaluate(lambda x: {"size": float(len(x))}, loader)
        return calls, found

    results = run_together(hub, train)
    assert hub.fired == hub.faults
    assert all(calls and found for calls, found in results)
