"""Who trains does not wait while a worker that joins does what it can do before, or need not do."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.recovery.replica import Replica

STEPS, BATCH = 6, 4
X = torch.linspace(-1, 1, STEPS * BATCH)[:, None].expand(-1, 3)
JOINER = 2

FAULTS = {
    "none": [],
    "before they know that all are new": [(0, "reports", 1, "before")],
    "one knows it alone": [(0, "reports", 1, "after")],
    "they have looked": [(1, "reports", 2, "before")],
    "one has begun": [(1, "plan", 1, "after")],
    "as somebody joins": [(JOINER, "reports", 1, "after")],
    "as its state is sent": [(JOINER, "replica.0", 1, "after")],
}
"""When the rendezvous breaks."""


class Job:
    """Workers as threads; the last of them joins after some steps of the second epoch.

    Attributes:
        looked: Worker to how often it has looked for a checkpoint.
    """

    def __init__(self, size, *, epochs, faults=()):
        self.hub = Hub(size, faults, late={JOINER} if size > JOINER else ())
        self.epochs = epochs
        self.looked = Counter()
        self.contexts = []

    def run(self):
        """Gives what each has at its end."""
        return run_together(self.hub, self.train)

    def train(self, context):
        """What each worker does."""
        rank = context.settings.worker.slot
        self.contexts.append(context)
        context.reset_done = lambda _: setattr(context, "reset_requested", False)
        torch.manual_seed(rank)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X), BATCH, shuffle=True))
        trainer._state._context = context
        trainer._state._kept.who = rank
        for _ in trainer.epochs(self.epochs):
            for (mine,) in trainer.batches():
                trainer.step(lambda x: model(x).square().mean(), mine)
                if trainer.applied_steps == STEPS + 2 and JOINER in self.hub.late:
                    self.hub.admit(JOINER)
                    for each in self.contexts:
                        each.reset_requested = True
        return trainer.applied_steps, Replica({"model": model, "optimizer": optimizer}).checksum()


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_checkpoint_is_read_at_a_start_and_not_to_join(monkeypatch, tmp_path, faults):
    """Each who is there at the start reads it, once; who joins has all from the others."""
    settings = {"folder": str(tmp_path), "run": "one", "every_seconds": 1e-9, "keep": 100}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
    Job(1, epochs=1).run()
    assert list(tmp_path.glob("step-*"))
    job, load = Job(3, epochs=3, faults=faults), Keeping.load

    def counted(self):
        job.looked[self.who] += 1
        return load(self)

    monkeypatch.setattr(Keeping, "load", counted)
    results = job.run()
    assert job.hub.fired == job.hub.faults
    assert job.looked == {0: 1, 1: 1}
    assert len(results) == 3
    assert len(set(results)) == 1
    assert results[0][0] == 3 * STEPS
