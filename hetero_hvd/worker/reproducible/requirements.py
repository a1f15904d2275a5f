"""What the reproducible mode demands of a script and its job, and what it refuses."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hetero_hvd.core.numerics import cpu_capability
from hetero_hvd.core.numerics.fixed_point import MAX_NARROW_GRAINS, NARROW, WIDE, FixedPoint
from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import JobSettings
from hetero_hvd.worker.accelerator import is_nvidia, numeric_facts
from hetero_hvd.worker.reproducible import arithmetic
from hetero_hvd.worker.step.staleness import staleness_of
from hetero_hvd.worker.step.training_mode import Script

MODEL_KEYS = ("model name", "CPU part")
"""What /proc/cpuinfo calls the processor's model, on x86-64 and ARM."""

UNFIT_MODULES = {
    "OptimizedModule": "torch.compile makes other code for the shapes that a worker meets first",
    "SyncBatchNorm": "SyncBatchNorm normalises over what the workers happen to hold; use BatchNorm",
}
"""Class name to why it is refused."""


@dataclass(frozen=True, kw_only=True)
class GrainSettings:
    """How grains are computed and added up.

    Attributes:
        grain: Samples of one forward and backward, > 0; divides the global batch.
        seed: Seed of data order and all random numbers.
        num_grains: Grains in a whole step.
        fixed_point: How grains are added up.
    """

    grain: int
    seed: int
    num_grains: int
    fixed_point: FixedPoint

    def numerics(self, model: torch.nn.Module) -> str:
        """All that bits depend on beside the script; must be equal on all workers."""
        facts = numerics(model) | {"grain": self.grain, "sums": f"{self.fixed_point.bits} bits"}
        return "; ".join(f"{name} {value}" for name, value in facts.items())


def settle(script: Script) -> GrainSettings:
    """The settings that script and job ask for.

    Switches torch to deterministic algorithms, for the whole process. What the script leaves open,
    the job decides.

    Raises:
        UserError: Something asked for cannot be reproducible.
    """
    options, job = script.options, script.settings.launch.job
    grain = options.grain or job.grain
    is_planned = job.mode == "reproducible"
    if script.settings.driver is not None and not (is_planned and job.grain == grain):
        planned = job.grain if is_planned else 1
        raise UserError(
            f"the script trains in grains of {grain}, the job plans in grains of {planned}: "
            f"start it with hetero-hvd run --reproducible --grain {grain}"
        )
    global_batch_size = script.sampling.batch_size * options.accumulation_steps
    if global_batch_size % grain and not script.sampling.is_batched:
        raise UserError(
            f"reproducible: the global batch of {global_batch_size} samples must be a multiple of "
            f"grain={grain}"
        )
    settings = GrainSettings(
        grain=grain,
        seed=script.seed,
        num_grains=-(-global_batch_size // grain),
        fixed_point=WIDE if options.sum_bits == WIDE.bits else NARROW,
    )
    _refuse(script, settings)
    is_told = script.settings.driver is not None or job.cpu_capability != "auto"
    _check_instruction_set(job, is_told=is_told)
    _be_deterministic(script.model)
    return settings


def numerics(model: torch.nn.Module) -> dict[str, Any]:
    """What the bits of this process's results depend on: hardware, versions, threads, switches."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **_processor(model),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "matmul": torch.get_float32_matmul_precision(),
        "onednn": torch.backends.mkldnn.enabled,
    }
    return facts | numeric_facts()


def _processor(model: torch.nn.Module) -> dict[str, str]:
    """What must be equal of the processors: with one instruction set for all not their model."""
    name = cpu_capability.in_force(os.environ)
    if not name or "vendor_id" not in _cpu_info():  # that is x86-64's
        return {"cpu": next(filter(None, map(_cpu_info().get, MODEL_KEYS)), platform.machine())}
    return {
        "vendor": _cpu_info()["vendor_id"],
        "cpu_capability": name,
        "arithmetic": arithmetic.digest(model),
    }


@functools.cache
def _cpu_info() -> dict[str, str]:
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_instruction_set(job: JobSettings, *, is_told: bool) -> None:
    """Make sure that this process keeps to the instruction set that is asked for.

    Args:
        job: What the job asks for.
        is_told: Whether somebody has asked; else it is as the user has started the process.

    Raises:
        UserError: It does not: the libraries have read their variables when they were loaded.
    """
    wanted = cpu_capability.variables(job.cpu_capability)
    is_set = all(os.environ.get(name) == value for name, value in wanted.items())
    if is_told and not is_set and platform.machine() == "x86_64":
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise UserError(
            f"reproducible: cpu_capability={job.cpu_capability}: set {words} before the script "
            "starts, on all workers"
        )


def _refuse(script: Script, settings: GrainSettings) -> None:
    """Say what cannot be reproducible, by name."""
    options = script.options
    if options.micro_batch_size not in (None, settings.grain):
        raise UserError(
            f"reproducible: micro_batch_size={options.micro_batch_size}: leave it out, each grain "
            f"of {settings.grain} samples is one forward and backward"
        )
    if staleness_of(options).bound:
        raise UserError("reproducible: staleness_bound must be 0: faults would change the delays")
    if options.compression != "none":
        raise UserError(
            f"reproducible: compression={options.compression}: rounds each worker's own sum; leave "
            "it out"
        )
    if settings.fixed_point is NARROW and settings.num_grains > MAX_NARROW_GRAINS:
        raise UserError(
            f"reproducible: sum_bits=32 holds {MAX_NARROW_GRAINS} grains a step, this are "
            f"{settings.num_grains}: use larger grains or sum_bits=64"
        )
    refuse_model(script.model)


def refuse_model(model: torch.nn.Module) -> None:
    """Refuse what cannot be reproducible in a model.

    Raises:
        UserError: There is such a thing.
    """
    for name, module in model.named_modules():
        why = UNFIT_MODULES.get(type(module).__name__)
        if why is not None:
            raise UserError(f"reproducible: model{'.' * bool(name)}{name}: {why}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype.itemsize > 4:  # noqa: PLR2004 - float32's
            raise UserError(
                f"reproducible: {name} is of {parameter.dtype}: gradients are summed with the "
                "precision of float32, use that"
            )


def _be_deterministic(model: torch.nn.Module) -> None:
    if any(is_nvidia(parameter.device) for parameter in model.parameters()):
        variable = "CUBLAS_WORKSPACE_CONFIG"
        if os.environ.get(variable) not in {":4096:8", ":16:8"}:
            raise UserError(f"reproducible: set {variable}=:4096:8 before the script starts")
    torch.use_deterministic_algorithms(True)  # what has no such algorithm is refused by torch
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # (It would fill what `torch.empty` gives, to find those who read it.)
    torch.backends.cudnn.benchmark = False
