"""Which vector instructions torch's libraries may use, so that unlike processors compute alike.

Each of them chooses its kernels by what the processor can do, and other kernels give other bits:
ATen (its own loops), oneDNN (convolutions, attention, recurrent layers) and MKL (matrix products,
functions of many elements). Each obeys a variable of its own, which it reads when it is first used.
Names are those of ATen's variable. See docs/decisions/0017-one-instruction-set.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

ATEN = "ATEN_CPU_CAPABILITY"


@dataclass(frozen=True)
class InstructionSet:
    """A set of instructions to which all libraries are held.

    Attributes:
        variables: What makes them keep to it.
        flags: What the processor must have, as /proc/cpuinfo of x86-64 calls it.
    """

    variables: Mapping[str, str]
    flags: frozenset[str] = frozenset()


INSTRUCTION_SETS: dict[str, InstructionSet] = {
    "default": InstructionSet(
        {ATEN: "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
    ),
    "avx2": InstructionSet(
        {ATEN: "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
        frozenset({"avx2", "fma"}),
    ),
    "avx512": InstructionSet(
        {ATEN: "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "AVX512"},
        frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ),
}
"""By the name of ATen's capability, weakest first."""

AUTO = "avx2"
"""What every x86-64 server and desktop has had for ten years."""


def chosen(capability: str) -> str:
    """The instruction set that a setting asks for; "" for `native`: whatever each machine has."""
    return {"auto": AUTO, "native": ""}.get(capability, capability)


def variables(capability: str) -> Mapping[str, str]:
    """What to set before a worker starts."""
    name = chosen(capability)
    return INSTRUCTION_SETS[name].variables if name else {}


def in_force(environment: Mapping[str, str]) -> str:
    """The instruction set that a process with these variables keeps to; "" if to none."""
    for name, found in INSTRUCTION_SETS.items():
        if all(environment.get(key) == value for key, value in found.variables.items()):
            return name
    return ""


def missing(environment: Mapping[str, str], flags: Collection[str]) -> str:
    """Why a process with these variables cannot run on a processor; "" if it can.

    Args:
        environment: Its variables.
        flags: What the processor has, as /proc/cpuinfo says; empty where that is another kind.
    """
    name = in_force(environment)
    lacks = sorted(INSTRUCTION_SETS[name].flags.difference(flags)) if name and flags else []
    if not lacks:
        return ""
    return (
        f"cpu_capability={name}: this processor has no {', '.join(lacks)}: leave the node out, or "
        "train all of the run, from its first step on, with --cpu-capability default"
    )
