"""A pod's cores, memory and GPUs: what was granted, and what a worker would take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import psutil

from hetero_hvd.core.digits import whole_number
from hetero_hvd.pod.findings import PodFinding
from hetero_hvd.probes.gpu.gpu_records import GpuReport
from hetero_hvd.probes.kernel.control_groups import num_oom_kills
from hetero_hvd.probes.machine.hardware import allowed_cores, allowed_memory_bytes, gpus

NONE_GRANTED = ("", "void", "none")
"""Of NVIDIA_VISIBLE_DEVICES; with `void` devices may still come by CDI."""

ALL = "all"
DEVICES = "NVIDIA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
MAX_SHOWN = 40
"""Characters of a variable."""


def core_finding(num_workers: int) -> PodFinding:
    """Whether the threads of all workers fit the cores of the pod.

    Args:
        num_workers: Of this pod, >= 1.
    """
    cores, threads = allowed_cores(), os.environ.get(THREADS, "")
    found = f"{cores:g} cores, {THREADS} {threads[:MAX_SHOWN] or 'is not set'}"
    if num_workers > 1:
        found += f", {num_workers} workers"
    most = max(1, int(cores) // num_workers)
    to_do = ""
    if not (number := whole_number(threads)):
        to_do = f"set it to {most}: torch counts the {os.cpu_count()} cores of the node"
    elif number > most:
        to_do = f"set it to {most}: more threads than cores are throttled, and slow"
    return PodFinding(what="cores", found=found, to_do=to_do)


def memory_findings() -> Iterator[PodFinding]:
    """Whether the pod has a limit, and whether somebody was ended for it."""
    limit, machine = allowed_memory_bytes(), psutil.virtual_memory().total
    is_limited = limit < machine
    yield PodFinding(
        what="memory",
        found=f"{limit / 2**30:.1f} GiB" + ("" if is_limited else ", all of the node"),
        to_do="" if is_limited else "give the container a limit: else the node's other pods suffer",
    )
    if kills := num_oom_kills():
        yield PodFinding(
            what="ended for memory",
            found=f"{kills} processes since the container was started",
            to_do="raise --agent-memory: its sum with what is in /dev/shm was not enough",
        )


def num_granted(variable: str) -> int | None:
    """GPUs that the device plugin says it has granted; None: it does not say how many."""
    if variable in NONE_GRANTED:
        return 0
    return None if variable == ALL else len(variable.split(","))


def num_devices(found: Sequence[GpuReport]) -> int:
    """What can be granted of some GPUs: whole ones, and the parts of those that are divided."""
    return sum(len(gpu.mig_devices) if gpu.is_mig else 1 for gpu in found)


def gpu_finding(torch_devices: Callable[[], Sequence[str]]) -> PodFinding:
    """Whether what was granted, what the driver's library sees, and what torch can use are one.

    Args:
        torch_devices: Asks torch, which takes seconds; not called where there is no GPU.
    """
    variable = os.environ.get(DEVICES, "")
    there = gpus()
    granted, seen = num_granted(variable), num_devices(there)
    most = min(seen, 1) if any(gpu.is_mig for gpu in there) else seen  # CUDA opens one part
    if not granted and not seen:
        to_do = ""
        if granted is None:
            to_do = "the image asks for all and got none: nvidia.com/gpu in its limits? (--gpu N)"
        return PodFinding(what="GPUs", found="none", to_do=to_do)
    usable = len(torch_devices())
    found = f"{DEVICES} {variable or 'is not set'}; NVML sees {seen}, torch can use {usable}"
    to_do, is_bad = "", True
    if usable < most:
        to_do = "torch in the image is not built for CUDA, or for a newer driver"
    elif seen < (granted or 0):
        to_do = f"{granted} were granted: the node's driver or device plugin has lost some"
    elif granted is None:
        is_bad = False
        to_do = "no device plugin has chosen them, others may use them: nvidia.com/gpu in limits"
    return PodFinding(what="GPUs", found=found, to_do=to_do, stops_training=bool(to_do) and is_bad)
