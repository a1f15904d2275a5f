"""What this worker says of itself before it is admitted: software, device, machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from pathlib import Path

import torch

from hetero_hvd.core.versions import NCCL
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
        "cuda": torch.version.cuda or "",
        "nccl": nccl,
        "reduction": NCCL if nccl and device.type == "cuda" else "host memory",
    }
    for package in ("hetero_hvd", "horovod", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return {name: version for name, version in found.items() if version}


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


def device_uuid(device: torch.device) -> str:
    """The GPU's identity as NVML has it; empty for a CPU, or where torch does not tell."""
    if device.type != "cuda":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return "" if uuid is None else f"GPU-{uuid}"
