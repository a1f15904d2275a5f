"""What is to run in a slot of a node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hetero_hvd.config import NodeConfig
from hetero_hvd.messages.launch import (
    LAUNCH_VARIABLE,
    NodeSettings,
    WorkerLaunch,
    launch_to_text,
)

ONE_GPU = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""What shows one GPU only to a worker: for CUDA and ROCm, and for oneAPI."""

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}
"""What hides all of them."""


@dataclass(frozen=True, kw_only=True)
class LeaseOrder:
    """Which device the worker has to have for itself; the node knows its GPUs' UUIDs.

    Attributes:
        slot: What a CPU slot is called; empty: the agent or Slurm counts them.
        is_emulated: Whether nodes of other names may share the GPU: they are there to try things
            out.
        holder: The job in words, for whoever wants the device, too.
    """

    slot: str
    is_emulated: bool
    holder: str


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """What the supervisor on the node should run. Sent over its input, never on a command line.

    Attributes:
        command: The user's command.
        directory: Working directory.
        environment: Added to the node's own; holds the worker's key.
        gpu: Index of the slot's GPU among those of the node; None to leave CUDA's variable alone.
        lease: What the worker's device is leased by; None: by nothing, as nothing is trained.
    """

    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    gpu: int | None
    lease: LeaseOrder | None = None


def launch_order(
    node: NodeConfig,
    slot: int,
    command: Sequence[str],
    job_environment: Mapping[str, str],
    launch: WorkerLaunch | None = None,
    *,
    holder: str = "",
) -> LaunchOrder:
    """What to run in a slot of a node.

    Args:
        node: The node.
        slot: Index of the slot.
        command: The user's command.
        job_environment: Variables of the job's workers, among them its secrets.
        launch: What the worker is told; the node's part is added here.
        holder: The job in words; empty: no device is leased.
    """
    shared = {
        name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "NCCL_"))
    }  # Horovod's own settings must be equal on all workers, also on those behind ssh
    environment = {**shared, "PYTHONUNBUFFERED": "1"}
    if node.emulate is not None:
        environment["OMP_NUM_THREADS"] = "1"  # several emulated nodes share this machine's cores
    environment.update(node.env)
    if node.devices is not None:
        environment |= dict.fromkeys(ONE_GPU, str(node.devices[slot])) if node.devices else NO_GPU
    own = msgspec.convert(node, NodeSettings, from_attributes=True)
    told = msgspec.structs.replace(launch or WorkerLaunch(), node=own)
    environment[LAUNCH_VARIABLE] = launch_to_text(told)
    environment.update(job_environment)
    return LaunchOrder(
        command=tuple(command),
        directory=node.directory or str(Path.cwd()),
        environment=environment,
        gpu=None if node.devices is not None else slot,
        lease=_lease(node, slot, holder) if holder else None,
    )


def _lease(node: NodeConfig, slot: int, holder: str) -> LeaseOrder:
    name = node.lease or f"{node.name}:{slot}"
    is_emulated = node.emulate is not None
    are_counted = node.kind.counts_slots and not is_emulated
    return LeaseOrder(slot="" if are_counted else name, is_emulated=is_emulated, holder=holder)
