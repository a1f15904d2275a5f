"""A small training whose workers' speeds are those that a test wants: real workers, real Horovod.

Usage: uneven.py JSON, an object with
  samples, batch, epochs: of the training;
  seconds: worker to [seconds per sample, samples in a block]: a part of the batch takes as long as
    the whole blocks that contain it;
  slower: worker to [first step, factor]: from then on it takes so many times as long;
  dies: worker to a step at which it kills itself, once;
  evaluate_every: steps between two evaluations in the midst of an epoch; 0 = none.
The first parameters count how often each sample was used.
"""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

WORKER = os.environ["HETERO_HVD_WORKER"]
HAS_DIED = Path(f"has-died-{WORKER.replace(':', '-')}")
run = json.loads(sys.argv[1])
samples, batch = run["samples"], run["batch"]
per_sample, block = run["seconds"][WORKER]
first_slow_step, factor = run.get("slower", {}).get(WORKER, (math.inf, 1.0))


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(samples))


model = Counts()
optimizer = torch.optim.SGD(model.parameters(), lr=float(batch))
data = TensorDataset(torch.arange(samples))
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, batch, shuffle=False))
means = []


def loss(index):
    """Take as long as such a device does."""
    step = trainer.applied_steps
    if step == run.get("dies", {}).get(WORKER) and not HAS_DIED.exists():
        HAS_DIED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    slowdown = factor if step >= first_slow_step else 1.0
    time.sleep(math.ceil(len(index) / block) * block * per_sample * slowdown)
    return -model.counts[index].mean()


for _ in trainer.epochs(run["epochs"]):
    for (index,) in trainer.batches():
        trainer.step(loss, index)
        every = run.get("evaluate_every", 0)
        if every and trainer.applied_steps % every == 0:
            found = trainer.evaluate(
                lambda index: {"number": index.float().mean()}, DataLoader(data, batch)
            )
            means.append(found["number"])
result = {
    "steps": trainer.applied_steps,
    "counts": model.counts.detach().tolist(),
    "means": means,
}
Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(result))
