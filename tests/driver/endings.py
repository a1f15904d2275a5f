"""A small training whose script ends in one of many ways, each worker in its own.

Usage: endings.py JSON: worker to [kind, place]. The first 16 parameters count how often each
sample was used, so that every worker that writes a result proves that no step was lost or repeated.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

SAMPLES, BATCH, EPOCHS = 16, 4, 3
STEP = 6
"""In the middle of the second epoch: there the script ends, unless at another place."""

WORKER = os.environ["HETERO_HVD_WORKER"]
kind, place = json.loads(sys.argv[1]).get(WORKER, ("finish", ""))
KEPT = []


def here(name):
    """End the script if it is to end at this place, in a way that no statement of a loop can."""
    if name != (place or "step"):
        return
    match kind.split():
        case ["raise"]:
            raise ArithmeticError("the script is wrong")
        case ["exit", code]:
            sys.exit(int(code))
        case ["late", "exit", code]:
            wait_for_another()
            sys.exit(int(code))
        case ["_exit", code]:
            os._exit(int(code))
        case ["signal", name]:
            os.kill(os.getpid(), getattr(signal, name))


def wait_for_another():
    """Until another worker has finished, and a while longer."""
    deadline = time.monotonic() + 20.0
    while len(list(Path().glob("result-*.json"))) < 2:
        assert time.monotonic() < deadline, "nobody else has finished"
        time.sleep(0.05)
    time.sleep(2.0)


def linger(seconds):
    """What a script still has to do when its work is done."""
    time.sleep(seconds)
    (Path.cwd() / f"lingered-{WORKER.replace(':', '-')}").touch()


def take_steps(trainer, loss):
    """The steps of an epoch; whether a statement of the loop is to end it now."""
    for (index,) in trainer.batches():
        trainer.step(loss, index)
        if trainer.applied_steps == STEP:
            here("step")
            if kind in {"break", "return", "keep", "hook", "thread"}:
                return True
    return False


def train(trainer, data):
    """The loop."""
    counts = trainer.model.counts

    def loss(index):
        if trainer.applied_steps == STEP:
            here("loss")
        return -counts[index].mean()

    def metrics(index):
        here("evaluation")
        return {"count": counts[index].mean()}

    epochs = trainer.epochs(EPOCHS)
    if kind == "keep":
        KEPT.append(epochs)
    for _ in epochs:
        here("begin")
        is_over = take_steps(trainer, loss)
        if is_over and kind == "return":
            return
        if is_over:
            break
        if kind != "skip":
            trainer.evaluate(metrics, DataLoader(data, BATCH))
        if kind == "scheduler":
            trainer.scheduler.step()
        here("epoch")


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self):
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES))


def main():
    """Train, and write down how often each sample was used."""
    here("import")
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(BATCH))
    data = TensorDataset(torch.arange(SAMPLES))
    options = {}
    if kind == "scheduler":
        options["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, BATCH, shuffle=True), **options)
    trainer.model = model
    trainer.scheduler = options.get("scheduler")
    if kind == "hook":
        atexit.register(linger, 6.0)
    if kind == "thread":
        threading.Thread(target=lambda: (threading.main_thread().join(), linger(2.0))).start()
    train(trainer, data)
    counts = model.counts.detach().tolist()
    result = [trainer.applied_steps, min(counts), max(counts)]
    Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(result))
    here("after")


main()
