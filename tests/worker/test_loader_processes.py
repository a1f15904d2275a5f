"""Samples are read where the loader says, whatever happens in between."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader, get_worker_info

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


@pytest.fixture
def ended(monkeypatch):
    """In which thread each loader has ended its processes."""
    threads, end = [], dataloader._MultiProcessingDataLoaderIter._shutdown_workers

    def noted(loader):
        threads.append(threading.current_thread())
        end(loader)

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", noted)
    return threads


@pytest.mark.parametrize("case", CASES)
def test_samples_are_read_in_loader_processes_only(case, ended):
    """A part that is taken again, or anew after a fault, comes from there too.

    Whoever has loaded ends its processes itself: none is left to Python's collector, which runs
    here when all is over, and would be waited for.
    """
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
    assert all(found for _, found in results)
    # Without waiting, who is late finds that the other has taken all.
    has_part = any if options.get("wait_free") else all
    assert has_part(calls for calls, _ in results)
    assert ended
    gc.collect()
    assert threading.current_thread() not in ended
