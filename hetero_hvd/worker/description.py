"""What a step's time depends on, in words: the device and the model."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import torch

from hetero_hvd.worker.memory import device_memory_bytes
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.staleness import wait_free_of

CPU_INFO = Path("/proc/cpuinfo")


def describe_device(device: torch.device) -> str:
    """The device's model; for a CPU, with the number of threads that compute."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "CPU")
    return f"{name}, {torch.get_num_threads()} threads"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's time depends on.

    Attributes:
        model: Class, and a digest of all parameters' names, shapes and types and of the precision.
        device: Its model.
        memory_bytes: Of a GPU; 0 on a CPU, where it says nothing about the speed.
        undivided: Samples that are never split between workers, >= 1.
        wait_free: Whether it takes in a step what it gets done.
    """

    model: str = ""
    device: str = ""
    memory_bytes: float = 0.0
    undivided: int = 1
    wait_free: bool = False


def describe_work(model: torch.nn.Module, options: StepOptions, device: torch.device) -> Work:
    """Describe what a trainer was given; gradients are scaled for float16 only."""
    parts = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.named_parameters()]
    parts.append(str(options.scaler is not None))
    digest = sha256("\n".join(parts).encode()).hexdigest()
    return Work(
        model=f"{type(model).__name__} {digest[:16]}",
        device=describe_device(device),
        memory_bytes=device_memory_bytes(device),
        undivided=options.undivided,
        wait_free=wait_free_of(options),
    )
