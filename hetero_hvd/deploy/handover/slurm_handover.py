"""The job for Slurm: a driver, and an agent for each device, which come and go one by one.

A pool is a partition, a priority a QOS. Slurm pins the environment itself, as `sbatch` finds it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.handover.handed_job import (
    CPU,
    DEFAULT_POOL,
    DEFAULT_PRIORITY,
    HandedJob,
    not_there,
)
from hetero_hvd.deploy.slurm import (
    MAX_AGENTS,
    AgentPool,
    SlurmDeployment,
    sbatch_options,
    shared_path,
)
from hetero_hvd.errors import AllWrong, UserError

TREE = "tree"
"""In the folder: the working tree."""

AGENTS = "devices"
"""Name of the pool of agents, in those of its script and its log."""

DRIVER_OPTIONS = ("--cpus-per-task=2", "--mem=4G")
LEAVE_SECONDS, STAGGER_SECONDS, IDLE_SECONDS = 60, 120, 1800
OF_DEVICES = ("--gpus", "--gres", "--gpu-bind", "-G")


def slurm_job(job: HandedJob, sbatch: str, after: Sequence[int]) -> SlurmDeployment:
    """What is to be written.

    Args:
        job: What was submitted.
        sbatch: Further options of sbatch, for all of its Slurm jobs.
        after: Numbers of Slurm's jobs that must have succeeded before.

    Raises:
        UserError: Slurm has nothing for parts of it; names each.
    """
    wrong, none = AllWrong(), tuple[str, ...]()
    folder = wrong.of(lambda: shared_path("--folder", job.folder), job.folder)
    further = wrong.of(lambda: _further(sbatch), none)
    with wrong.part():
        checks.count("--max", str(job.max_devices), 1, MAX_AGENTS)
    place = wrong.of(lambda: _place(job), none)
    devices = wrong.of(lambda: tuple(_devices(job)), none)
    command = wrong.of(lambda: checks.command(job.command), none)
    wrong.check()
    agents = AgentPool(
        name=AGENTS,
        number=job.max_devices,
        most=job.max_devices,
        options=(*place, *devices, *further),
    )
    return SlurmDeployment(
        name=job.name,
        folder=folder,
        directory=folder / TREE,
        python=job.python,
        command=command,
        pools=(agents,),
        driver_options=(*DRIVER_OPTIONS, *place, *further),
        leave_seconds=LEAVE_SECONDS,
        stagger_seconds=STAGGER_SECONDS,
        idle_seconds=IDLE_SECONDS,
        run_flags=job.run_flags,
        after=tuple(after),
    )


def _place(job: HandedJob) -> tuple[str, ...]:
    """Where and how soon its jobs run; as the cluster has it, where nothing was said."""
    found: list[str] = []
    if job.pool != DEFAULT_POOL:
        found += sbatch_options("--pool", shlex.quote(f"--partition={job.pool}"))
    if job.priority != DEFAULT_PRIORITY:
        found.append(f"--qos={job.priority}")
    return tuple(found)


def _further(text: str) -> tuple[str, ...]:
    words = sbatch_options("--sbatch", text, is_driver=True)
    for word in words:
        if word.startswith(OF_DEVICES):
            raise UserError(f"--sbatch: found {word!r}: devices are said by --max and --needs")
    return words


def _devices(job: HandedJob) -> list[str]:
    """Of one agent, which has one device."""
    kinds = [need for need in job.needs if need.what == "kind" and need.comparison == "=="]
    if len({need.value for need in kinds}) > 1:
        raise not_there("slurm", kinds[-1], "a device is of one kind only")
    found: list[str] = []
    if job.uses_gpus:
        found.append("--gpus=" + "".join(f"{need.value}:" for need in kinds[:1]) + "1")
    found += [_condition(need) for need in job.needs if need not in kinds]
    return [word for option in found for word in sbatch_options("--needs", shlex.quote(option))]


def _condition(need: DeviceNeed) -> str:
    if need.what == "node":
        return f"--{'nodelist' if need.comparison == '==' else 'exclude'}={need.value}"
    if need == DeviceNeed("kind", "!=", CPU):  # as is every GPU
        return "--gpus=1"
    why = "Slurm takes the kind that there is to be, --needs kind==KIND"
    if need.what == "memory":
        why = f"Slurm does not know the memory of devices; {why}"
    raise not_there("slurm", need, why)
