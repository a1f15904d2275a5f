"""One of the workers runs out of memory at a given step, in earnest."""

import ctypes
import resource
import time
from pathlib import Path

import torch
from alone import Alone, seeded
from scripted import arguments, follow, report
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.worker.micro_batch.memory_meter import LIMIT_SECONDS, free_memory
from hetero_hvd.worker.session.worker_context import init

WIDTH, BATCH, STEPS = 8192, 600, 6
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
# What is freed leaves no hole to be used, and there is no address space in reserve for threads.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

given = arguments()
rank = init().collective.rank
is_victim = rank == given["victim"]
fired, calls, running = [], [], []


def is_due(where):
    """Whether memory is to run out here and now."""
    step = running[-1].applied_steps if running else -1
    return is_victim and (where, step) == (given["where"], given["step"])


def address_space():
    """Bytes of this process's address space in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


class Greedy(torch.autograd.Function):
    """Changes nothing; its backward may ask for more memory than any machine has."""

    @staticmethod
    def forward(_context, x):
        """As it comes."""
        return x.view_as(x)

    @staticmethod
    def backward(_context, gradient):
        """The layers behind it have their gradients already."""
        if is_due("backward") and not fired:
            fired.append(given["step"])
            torch.empty(2**50)
        return gradient


def new_model():
    """Wide, so that a sample takes 64 KiB of activations."""
    with seeded():
        return nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16, track_running_stats=False).eval(),
            nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4, bias=False),
        )  # fmt: skip


def train(kind):
    """Train; the model, and what was lost on the way."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    with seeded(1):
        data = TensorDataset(torch.randn(BATCH * 3, 8), torch.randn(BATCH * 3, 4))
    options = {} if kind is Alone else {"bucket_bytes": 4096}
    trainer = kind(model, optimizer, DataLoader(data, BATCH, shuffle=True), **options)
    running[:] = [] if kind is Alone else [trainer]

    def loss(x, y):
        if running:
            calls.append((trainer.applied_steps, len(x)))
        hidden = model[0](x)
        return mse_loss(model[4](model[3](model[2](Greedy.apply(hidden)))), y)

    for _ in trainer.epochs(STEPS // 3):
        for x, y in trainer.batches():
            if is_due("forward"):  # the activations of the whole share take twice as much
                squeeze(len(x), tensors=1.5)
            if is_due("never"):  # there is room for 300 samples, but not for 400
                squeeze(300, tensors=4)
                time.sleep(LIMIT_SECONDS)  # so long a change of the limit may go unseen
            trainer.step(loss, x, y)
    return nn.utils.parameters_to_vector(model.parameters())


def squeeze(num_samples, *, tensors):
    """From now on there is room for so many tensors of the width of the model, not more."""
    fired.append(given["step"])
    free_memory()
    room = int(tensors * num_samples * WIDTH * 4)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + room, hard))


def main():
    """Leave what happened."""
    follow(given["plans"])
    together = train(hetero_hvd.Trainer)
    found = {"fired": fired, "calls": calls, "together": together.double().sum().item()}
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    found["error"] = (together - train(Alone)).abs().max().item()
    report(found)


main()
