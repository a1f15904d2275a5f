"""Two models that count in one loop how often each sample was used; one worker dies in a step.

Usage: two_models.py WORKER MODEL STEP: this worker kills itself in that step of the model LEAD or
CRITIC. The training ends with the epoch in which it is there again.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

SAMPLES, BATCH = 17, 4
"""The last step of an epoch has one sample: most workers have no part of it."""

STEPS = 5
WORKER = os.environ["HETERO_HVD_WORKER"]
DYING, MODEL, STEP = sys.argv[1], sys.argv[2], int(sys.argv[3])
DIED, BACK = Path("died"), Path("back")


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES))


def count(parameters):
    """Whatever the weights of a step, a sample that was used counts one."""
    for parameter in parameters:
        parameter.grad.sign_()


def loss_of(name, model, trainer):
    """Of one model; the place of the fault."""

    def loss(index):
        time.sleep(0.002)
        is_due = (WORKER, name, trainer.applied_steps) == (DYING, MODEL, STEP)
        if is_due and not DIED.exists():
            DIED.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -model.counts[index].mean()

    return loss


def wait_for_the_other():
    """Until the worker that has died is about to come back."""
    deadline = time.monotonic() + 60.0
    while DIED.exists() and not BACK.exists():
        assert time.monotonic() < deadline, "it does not come back"
        time.sleep(0.05)


def main():
    """Train, and write down how often each sample was used by each model."""
    lead, critic = Counts(), Counts()
    data = DataLoader(TensorDataset(torch.arange(SAMPLES)), BATCH, shuffle=True)
    trainer = hetero_hvd.Trainer(lead, torch.optim.SGD(lead.parameters(), lr=1.0), data, clip=count)
    optimizer = torch.optim.SGD(critic.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    other = trainer.add_model("critic", critic, optimizer, clip=count, scheduler=schedule)
    if DIED.exists():
        BACK.touch()
    for epoch in trainer.epochs(1000):
        if epoch == STEP // STEPS + 1:
            wait_for_the_other()
        for (index,) in trainer.batches():
            other.step(loss_of("CRITIC", critic, trainer), index)
            trainer.step(loss_of("LEAD", lead, trainer), index)
        if DIED.exists() and epoch > STEP // STEPS and trainer.world_size == 3:
            break
    used = [sorted(set(model.counts.detach().tolist())) for model in (lead, critic)]
    result = {"steps": [trainer.applied_steps, other.applied_steps], "used": used}
    Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(result))


main()
