"""What `gpu_check.device` runs in a process with torch: `... events|copies|memory`; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import torch

from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.accelerator import (
    DeviceEvent,
    HostCopier,
    empty_cache,
    memory_use,
    own_device,
    restart_peak,
    synchronize,
)

SIZE, PRODUCTS = 4096, 60


def busy(work: torch.Tensor, number: int = PRODUCTS) -> torch.Tensor:
    """Queue so many matrix products."""
    result = work
    for _ in range(number):
        result = work @ result / SIZE
    return result


def events(device: torch.device) -> dict[str, Any]:
    """The phase clock beside the wall clock."""
    work = torch.ones(SIZE, SIZE, device=device)
    busy(work)
    synchronize(device)
    clock = PhaseClock(partial(DeviceEvent, device, is_timed=True))
    began = time.perf_counter()
    with clock.phase("forward"):
        busy(work)
    launched = time.perf_counter()
    synchronize(device)
    wall = time.perf_counter() - began
    return {
        "event_seconds": clock.take()["forward"],
        "wall_seconds": wall,
        "launch_seconds": launched - began,
    }


def copies(device: torch.device) -> dict[str, Any]:
    """Tensors that are computed behind a queue, copied before they are there."""
    work = torch.ones(SIZE, SIZE, device=device)
    copier = HostCopier(device)
    num_wrong = num_early = 0
    for number in range(5):
        tensor = torch.zeros(SIZE, SIZE, device=device)
        busy(work)
        tensor.fill_(number + 1.0)
        host, copied = copier.copy(tensor)
        num_early += copied.query()
        busy(work)  # what comes later does not change the copy
        copied.wait()
        num_wrong += int((host != number + 1.0).sum())
        synchronize(device)
    began = time.perf_counter()
    for _ in range(10):
        copier.copy(work)[1].wait()
    seconds = time.perf_counter() - began
    speed = 10 * work.nbytes / seconds
    return {"num_wrong": num_wrong, "num_early": num_early, "bytes_per_second": speed}


def memory(device: torch.device) -> dict[str, Any]:
    """Before, with and after a tensor of 256 MiB."""
    torch.ones(1, device=device)
    restart_peak(device)
    before = memory_use(device)
    tensor = torch.empty(2**28, dtype=torch.uint8, device=device)
    num_bytes = tensor.nbytes
    held = memory_use(device)
    del tensor
    empty_cache()
    after = memory_use(device)
    return {
        "tensor_bytes": num_bytes,
        "added_bytes": held.peak_bytes - before.used_bytes,
        "kept_bytes": after.used_bytes - before.used_bytes,
        "limit_bytes": after.limit_bytes,
    }


def main() -> None:
    """One question."""
    asked = {"events": events, "copies": copies, "memory": memory}[sys.argv[1]]
    device = own_device(0)
    if device.type == "cpu":
        sys.exit("there is no accelerator")
    print(json.dumps(asked(device)))


if __name__ == "__main__":
    main()
