"""Sums of tensors on a late device and on a host, by real Horovod; one worker may be lost."""

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from scripted import arguments, report

sys.path.insert(0, str(Path(__file__).parents[2] / "worker"))

from fake_accelerator import DeviceTensor, FakeTorch

from hetero_hvd.worker import accelerator
from hetero_hvd.worker.comm.horovod import HorovodCollective, Interrupted

NUM_ROUNDS, SIZES = 20, (1, 1000, 300_000)

fake = FakeTorch("xpu")
accelerator.torch = fake
accelerator.time = SimpleNamespace(sleep=lambda _: fake.advance())
collective = HorovodCollective(elastic=False, is_unwanted=lambda: False)
collective.start()


def work():
    """The device works off its queue, a little late."""
    while True:
        time.sleep(0.001)
        fake.advance()


def tensor(number, size):
    """On the device, where a queue computes it later; on the host for the other worker."""
    value = float(number + collective.rank)
    if collective.rank:
        return torch.full((size,), value)
    made = DeviceTensor.on("xpu:1", torch.zeros(size), fake)
    plain = made.as_subclass(torch.Tensor)
    fake.current[1].add(lambda: plain.fill_(value))
    return made


threading.Thread(target=work, daemon=True).start()
num_right, error = 0, ""
try:
    for number in range(NUM_ROUNDS):
        if number == arguments()["lost_in_round"] and collective.rank:
            os._exit(3)
        mine = [tensor(number, size) for size in SIZES]
        names = [f"{number}.{size}" for size in SIZES]
        handles = [collective.sum_async(each, name) for each, name in zip(mine, names, strict=True)]
        for handle in handles:
            collective.wait(handle)
        fake.advance(1000)
        num_right += all(each.as_subclass(torch.Tensor).eq(2 * number + 1).all() for each in mine)
except Interrupted as fault:
    error = type(fault).__name__
report({"num_right": num_right, "error": error, "pinned": fake.pinned})
collective.stop()
