"""What a step's time depends on, in words: the device and the model."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import torch

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


def describe_model(model: torch.nn.Module, *, is_scaled: bool) -> str:
    """Class, and a digest of all parameters' names, shapes and types and of the precision.

    Args:
        model: The user's.
        is_scaled: Whether gradients are scaled, as they are for float16 only.
    """
    parts = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.named_parameters()]
    digest = sha256("\n".join([*parts, str(is_scaled)]).encode()).hexdigest()
    return f"{type(model).__name__} {digest[:16]}"
