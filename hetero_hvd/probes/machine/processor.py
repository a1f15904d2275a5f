"""The processor: its model, the cores that this process may use, and what they can do."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetero_hvd.probes.machine.hardware import allowed_cores

_CPU_INFO = Path("/proc/cpuinfo")
_NUMA = Path("/sys/devices/system/node")

_SIMD = re.compile(
    r"(sse4_[12]|avx\w*|fma|f16c|amx_\w+|asimd\w*|neon|sve\w*|bf16|i8mm|altivec|vsx)"
)
"""Instructions on vectors and matrices: they decide how fast a model runs on this CPU."""


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """Processors that share a memory of their own.

    Attributes:
        index: As the kernel counts.
        cpus: Their numbers, such as `0-15,32-47`.
    """

    index: int
    cpus: str


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The CPUs of this machine.

    Attributes:
        model: Product name.
        num_cpus: Logical CPUs of the machine, two for a core with hyper-threading.
        num_cores: Physical cores; None where the kernel does not tell.
        affinity: Numbers of the logical CPUs that this process may run on.
        allowed_cores: Cores worth of time for it: affinity, or less under a control group's quota.
        simd: Instruction sets for vectors and matrices, sorted.
        numa_nodes: By index; empty where the kernel does not tell.
    """

    model: str
    num_cpus: int
    num_cores: int | None
    affinity: tuple[int, ...]
    allowed_cores: float
    simd: tuple[str, ...]
    numa_nodes: tuple[NumaNode, ...]


def probe_processor() -> Processor:
    """Look at the CPUs now."""
    facts = _cpu_info()
    flags = facts.get("flags") or facts.get("Features") or ""  # x86, ARM
    return Processor(
        model=facts.get("model name") or facts.get("CPU part") or facts.get("cpu") or "unknown",
        num_cpus=os.cpu_count() or 1,
        num_cores=psutil.cpu_count(logical=False),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        allowed_cores=allowed_cores(),
        simd=tuple(sorted(filter(_SIMD.fullmatch, flags.split()))),
        numa_nodes=_numa_nodes(),
    )


def _cpu_info() -> dict[str, str]:
    """What /proc/cpuinfo says of the first CPU."""
    try:
        first = _CPU_INFO.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _numa_nodes() -> tuple[NumaNode, ...]:
    folders = [path for path in _NUMA.glob("node*") if path.name[4:].isdecimal()]
    nodes = [
        NumaNode(index=int(path.name[4:]), cpus=(path / "cpulist").read_text().strip())
        for path in folders
    ]
    return tuple(sorted(nodes, key=lambda node: node.index))
