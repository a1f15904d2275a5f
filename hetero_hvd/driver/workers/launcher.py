"""What is to run in a slot of a node."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero_hvd.config import NodeConfig


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """What the supervisor on the node should run. Sent over its input, never on a command line.

    Attributes:
        command: The user's command.
        directory: Working directory.
        environment: Added to the node's own; holds the job's key.
        gpu: Index of the slot's GPU among those of the node; None to leave CUDA's variable alone.
    """

    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    gpu: int | None


def launch_order(
    node: NodeConfig, slot: int, command: Sequence[str], job_environment: dict[str, str]
) -> LaunchOrder:
    """What to run in a slot of a node.

    Args:
        node: The node.
        slot: Index of the slot.
        command: The user's command.
        job_environment: Who the worker is and where its driver listens.
    """
    shared = {
        name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "NCCL_"))
    }  # Horovod's own settings must be equal on all workers, also on those behind ssh
    environment = {**shared, "PYTHONUNBUFFERED": "1"}
    if node.emulate is not None:
        environment["OMP_NUM_THREADS"] = "1"  # several emulated nodes share this machine's cores
    environment.update(node.env)
    if node.devices is not None:
        device = node.devices[slot] if node.devices else ""
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    settings = {
        "emulate": asdict(node.emulate) if node.emulate else None,
        "interface": node.interface,
        "max_local_batch_size": node.max_local_batch_size,
        "memory_limit_bytes": node.memory_limit_bytes,
    }
    environment["HETERO_HVD_NODE"] = json.dumps(settings)
    environment.update(job_environment)
    return LaunchOrder(
        command=tuple(command),
        directory=node.directory or str(Path.cwd()),
        environment=environment,
        gpu=None if node.devices is not None else slot,
    )
