"""A job as our queue has it, and what of that other queues do not know."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.core.queue.jobs import JobPriority
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.errors import UserError

DEFAULT_POOL = "default"
DEFAULT_PRIORITY: JobPriority = "normal"
CPU = "cpu"
"""Kind of a device that is no GPU."""

WAIT_SECONDS = 7 * 24 * 3600
"""So long a driver waits for agents: they may stand in a long queue."""

UNMAPPED: Mapping[str, Mapping[str, str]] = {
    "slurm": {
        "retries": "Slurm starts again what it preempts or has lost a node of, however often",
        "deadline": "Slurm hurries no job; its own --deadline would remove this one",
        "devices": "a program needs neither driver nor agents: give it to sbatch itself",
        "time_limit": "Slurm's limit is of one start, after which the training goes on in another: "
        "--sbatch='--time=8:00:00'",
        "idle_limit": "is of programs (--devices)",
        "array": "submit each element by itself, with HETERO_HVD_ARRAY_INDEX in its environment",
        "socket": "is of our own queue",
        "trials": "is of our own queue",
        "image": "is of --to kubernetes",
    },
    "kubernetes": {
        "deadline": "Kueue hurries no job",
        "after": "a Job waits for no other one",
        "devices": "a program needs neither driver nor agents: write a Job of it",
        "idle_limit": "is of programs (--devices)",
        "array": "submit each element by itself, with its index as an argument",
        "socket": "is of our own queue",
        "trials": "is of our own queue",
        "sbatch": "is of --to slurm",
    },
}
"""Options of `submit` that another queue has nothing for, and why not, or what to do instead."""

DECIDED: Mapping[str, Collection[str]] = {
    "slurm": ("cluster_key_file", "listen"),
    "kubernetes": (
        *("cluster_key_file", "driver_address", "http_address", "http_port", "http_token_file"),
        "listen",
    ),
}
"""Settings of a job that follow from where it runs."""


@dataclass(frozen=True, kw_only=True)
class HandedJob:
    """What was submitted, as it was then.

    Attributes:
        name: Of the job there.
        folder: Where it is written.
        command: The script, by its path in the working tree, and its arguments.
        python: The interpreter.
        packed: The working tree, a tar.gz.
        pool: Whose devices it uses first.
        priority: Of three.
        min_devices: It runs on no fewer.
        max_devices: It has no more.
        needs: What each device must fulfil.
        flags: Settings, as flags of `hetero-hvd run`.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    python: str
    packed: bytes
    pool: str = DEFAULT_POOL
    priority: JobPriority = DEFAULT_PRIORITY
    min_devices: int = 1
    max_devices: int = 1
    needs: tuple[DeviceNeed, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def uses_gpus(self) -> bool:
        """Whether its devices are GPUs, as they are unless a kind `cpu` is asked for."""
        return DeviceNeed("kind", "==", CPU) not in self.needs

    @property
    def run_flags(self) -> tuple[str, ...]:
        """All that `hetero-hvd run` is told: how many devices it takes, and the settings."""
        fewest, most = f"--min-np={self.min_devices}", f"--max-np={self.max_devices}"
        return (fewest, most, f"--elastic-timeout-seconds={WAIT_SECONDS}", *self.flags)


def check_mapped(target: str, given: Collection[str], settings: Collection[str]) -> None:
    """Refuse what the other queue could not do.

    Args:
        target: Of `UNMAPPED`.
        given: Names of options that were given.
        settings: Names of settings that were given.

    Raises:
        UserError: Names each, and says why.
    """
    lines = [
        f"--{name.replace('_', '-')}: not with --to {target}: {why}"
        for name, why in UNMAPPED[target].items()
        if name in given
    ]
    lines += [
        f"--{name.replace('_', '-')}: not with --to {target}: follows from where the job runs"
        for name in sorted(settings)
        if name in DECIDED[target]
    ]
    if lines:
        raise UserError(*lines)


def not_there(target: str, need: DeviceNeed, why: str) -> UserError:
    """A condition that the other queue cannot look at."""
    return UserError(f"--needs {need}: not with --to {target}: {why}")
