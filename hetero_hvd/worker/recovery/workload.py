"""What is trained, and on what: all that a step's time depends on, and the data."""

from __future__ import annotations

import platform
from hashlib import sha256

import msgspec
import torch

from hetero_hvd.data.listing import opened_files
from hetero_hvd.messages import FileSet
from hetero_hvd.messages.launch import NodeSettings
from hetero_hvd.worker.accelerator import is_accelerator, name_of
from hetero_hvd.worker.micro_batch.memory_meter import device_memory_bytes
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.session.self_description import describe_device


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, on what device and data.

    Attributes:
        model: Class, and a digest of all parameters' names, shapes and types and of the precision.
        device: Its model, and how it is slowed down to act as another one.
        arithmetic: What its rounding depends on: GPUs of one model, or CPUs of one instruction set,
            apply an update bit for bit alike.
        memory_bytes: Of a GPU; 0 on a CPU, where it says nothing about the speed.
        undivided: Samples that are never split between workers, >= 1.
        shares_vary: Whether a worker takes in a step what it gets done, whatever the plan says.
        shares_fixed: Whether the script divides its data itself, whatever the plan says.
        can_calibrate: Whether this worker can measure itself before its next step.
        data: The sets of files that the script had opened when it made its trainer.
    """

    model: str = ""
    device: str = ""
    arithmetic: str = ""
    memory_bytes: float = 0.0
    undivided: int = 1
    shares_vary: bool = msgspec.field(default=False, name="wait_free")
    shares_fixed: bool = False
    can_calibrate: bool = False
    data: tuple[FileSet, ...] = ()


def describe_workload(
    model: torch.nn.Module,
    options: StepOptions,
    device: torch.device,
    node: NodeSettings,
    *,
    grain: int | None,
    shares_vary: bool,
    can_calibrate: bool,
) -> Workload:
    """Describe what a trainer was given; gradients are scaled for float16 only."""
    parts = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.named_parameters()]
    parts.append(str(options.scaler is not None))
    digest = sha256("\n".join(parts).encode()).hexdigest()
    return Workload(
        model=f"{type(model).__name__} {digest[:16]}",
        device=describe_device(device, node.emulate),
        arithmetic=name_of(device) if is_accelerator(device) else platform.machine(),
        memory_bytes=device_memory_bytes(device),
        undivided=grain or options.undivided,
        shares_vary=shares_vary,
        can_calibrate=can_calibrate,
        data=opened_files(),
    )
