"""Trainings one after the other, and an evaluation after each; some workers are lost in them.

Usage: two_trainers.py JSON [NUMBER]: place to the worker that is killed there; NUMBER trainings of
two epochs, else those of `main`. The parameters count how often each sample was used, so that a
result proves that no step was lost or repeated.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

SAMPLES, BATCH, EPOCHS = 16, 4, 3
STEP = 6
"""Of each training, in which a worker may be lost."""
WORKER = os.environ["HETERO_HVD_WORKER"]
FAULTS = json.loads(sys.argv[1])


def here(name):
    """Be killed, if that is to happen to this worker at this place."""
    if FAULTS.get(name) == WORKER:
        Path(f"fired-{name}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES))


class Training:
    """A trainer and its model."""

    def __init__(self):
        self.counts = (model := Counts()).counts
        data = TensorDataset(torch.arange(SAMPLES))
        self.test_set = DataLoader(data, BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(BATCH))
        self.trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, BATCH, shuffle=True))

    def run(self, num_epochs, name):
        """Train and evaluate; gives steps, how often each sample was used, and what was found."""

        def loss(index):
            if self.trainer.applied_steps % 12 == STEP:
                here(f"{name}-training")
            return -self.counts[index].mean()

        for _ in self.trainer.epochs(num_epochs):
            for (index,) in self.trainer.batches():
                self.trainer.step(loss, index)
        counts = self.counts.detach()
        used = [float(counts.min()), float(counts.max())]
        return [self.trainer.applied_steps, *used, self.evaluate(name)]

    def evaluate(self, name):
        """The mean over the set's samples; each has its own number, so none may be missing."""

        def metrics(index):
            here(f"{name}-evaluation")
            return {"number": index.float().mean()}

        return self.trainer.evaluate(metrics, self.test_set)["number"]


def many(number):
    """So many trainings, each with a trainer of its own."""
    found = [Training().run(2, f"number-{index}") for index in range(number)]
    Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(found))


def main():
    """The second training, then the first one again: it is evaluated, and goes on."""
    first, second = Training(), Training()
    found = [first.run(EPOCHS, "first"), second.run(EPOCHS, "second")]
    found += [first.evaluate("late"), first.run(2 * EPOCHS, "third")]
    Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(found))


if len(sys.argv) > 2:
    many(int(sys.argv[2]))
else:
    main()
