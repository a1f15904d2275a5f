"""A script for Horovod that knows nothing of hetero_hvd, elastic or not, and ends in many ways.

Usage: plain_horovod.py JSON: worker to [kind, batch]; `seconds` of a batch by worker, `epochs`,
`commit`: batches between two, 0 in a script that is not elastic; `until_size`: workers that have
to have taken the last 20 batches together. The parameters count how often each sample was used:
what a worker writes down proves that after all faults nothing was lost or done twice.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 240, 4
WORKER = os.environ["HETERO_HVD_WORKER"]
words = json.loads(sys.argv[1])
kind, at = words.get(WORKER, ("finish", -1))
mark = Path(f"mark-{WORKER.replace(':', '-')}")


def here(batch):
    """End the script here, if it is to end at this batch; once, however often it is started."""
    if batch != at or mark.exists():
        return
    mark.touch()
    match kind.split():
        case ["raise"]:
            raise ArithmeticError("the script is wrong")
        case ["exit", code]:
            sys.exit(int(code))
        case ["signal", name]:
            os.kill(os.getpid(), getattr(signal, name))
        case ["reduce", size]:
            hvd.allreduce(torch.zeros(int(size)), name="own")


class Counts(torch.nn.Module):
    """One parameter for each sample, and others that weight decay would change."""

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.decaying = torch.nn.Parameter(torch.rand(8))


hvd.init()
data = TensorDataset(torch.arange(SAMPLES))
sampler = hvd.elastic.ElasticSampler(data)
loader = DataLoader(data, BATCH, sampler=sampler)
model = Counts()
groups = [
    {"params": [model.counts]},
    {"params": [model.decaying], "weight_decay": 0.1, "momentum": 0.9},
]
optimizer = torch.optim.SGD(groups, lr=1.0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
)


def train(state):
    """All epochs."""
    while not state.is_over:
        for index, (samples,) in enumerate(loader):
            optimizer.zero_grad()
            here(state.batch)
            time.sleep(words["seconds"].get(WORKER, 0.01))
            (-model.counts[samples].sum() + 0 * model.decaying.sum()).backward()
            optimizer.step()
            state.batch += 1
            sampler.record_batch(index, len(samples))
            state.sizes = [*state.sizes, hvd.size()]
            if words["commit"] and state.batch % words["commit"] == 0:
                state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        is_complete = min(state.sizes[-20:]) >= words.get("until_size", 0)
        state.is_over = state.epoch >= words["epochs"] and is_complete


start = {"epoch": 0, "batch": 0, "sizes": [], "is_over": False}
if words["commit"]:
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, **start)
    hvd.elastic.run(train)(state)
else:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = SimpleNamespace(**start)
    train(state)
    hvd.shutdown()
values = torch.cat([model.counts, model.decaying]).tolist()
result = {"values": values, "epochs": state.epoch, "batches": state.batch, "sizes": state.sizes}
Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(result))
