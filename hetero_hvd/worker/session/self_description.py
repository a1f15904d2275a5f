"""What this worker says of itself before it is admitted: software, device, machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from pathlib import Path

import torch

from hetero_hvd.core.versions import CUDA, NCCL
from hetero_hvd.messages.launch import EMULATED, EmulateSettings
from hetero_hvd.worker import accelerator
from hetero_hvd.worker.comm.horovod import nccl_version

CPU_INFO = Path("/proc/cpuinfo")


def software(device: torch.device) -> dict[str, str]:
    """Versions of what must fit together, by the columns of `core.versions`; none where it is not.

    Args:
        device: What this worker computes on.
    """
    nccl = nccl_version()
    found = {
        "python": platform.python_version(),
        CUDA: accelerator.toolkit_version(),
        "nccl": nccl,
        "reduction": NCCL if nccl and accelerator.has_nccl(device) else "host memory",
    }
    for package in ("hetero_hvd", "horovod", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return {name: version for name, version in found.items() if version}


def describe_device(device: torch.device, emulate: EmulateSettings | None = None) -> str:
    """The device's model; for a CPU, with the number of threads that compute.

    Args:
        device: What this worker computes on.
        emulate: How it is slowed down, which is told, too: it is another device by its speed.
    """
    model = _model_of(device)
    return model if emulate is None else f"{model}{EMULATED}{emulate.words}"


def _model_of(device: torch.device) -> str:
    if accelerator.is_accelerator(device):
        return accelerator.name_of(device)
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "CPU")
    return f"{name}, {torch.get_num_threads()} threads"
