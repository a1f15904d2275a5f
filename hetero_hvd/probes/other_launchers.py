"""Whether another launcher than ours or Horovod's has started this process as one of several.

Each of its processes would train alone on all of the data. Launchers are known by the variables
that they set; those that a user or a scheduler may have set for another reason are no sign. Nor
are those that a job of Slurm was submitted with: sbatch hands them down from where it was called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_hvd.core.digits import whole_number
from hetero_hvd.probes.kernel.ancestors import ancestors

GUIDE = "docs/guide/migrate.md"

_DAEMON = re.compile(r"slurmstepd: \[[^\]]*\.([^\].]+)\]")
"""How a slurmstepd calls itself: `[12.batch]`, `[12.interactive]`, `[12.0]`, `[13+1.0]`."""

FIRST_RESERVED = 4294967280
"""Numbers from here on are no steps of srun's: the batch script, the shell of salloc."""


@dataclass(frozen=True, kw_only=True)
class OtherLauncher:
    """What a launcher's processes find in their environment.

    Attributes:
        name: Of the command, as people write it.
        size: Variable with the number of its processes.
        rank: Variable with the number of this one.
        mark: A variable that tells it from others with the same ones; empty: none is needed.
        sets_in_steps: Whether each step of Slurm has them from Slurm itself.
    """

    name: str
    size: str
    rank: str
    mark: str = ""
    sets_in_steps: bool = False


OTHER_LAUNCHERS = (
    OtherLauncher(
        name="srun", size="SLURM_STEP_NUM_TASKS", rank="SLURM_PROCID", sets_in_steps=True
    ),
    OtherLauncher(name="mpirun", size="OMPI_COMM_WORLD_SIZE", rank="OMPI_COMM_WORLD_RANK"),
    OtherLauncher(name="mpirun", size="MV2_COMM_WORLD_SIZE", rank="MV2_COMM_WORLD_RANK"),
    OtherLauncher(name="jsrun", size="JSM_NAMESPACE_SIZE", rank="JSM_NAMESPACE_RANK"),
    OtherLauncher(name="mpiexec", size="PMI_SIZE", rank="PMI_RANK"),
    OtherLauncher(
        name="accelerate launch", size="WORLD_SIZE", rank="RANK", mark="ACCELERATE_MIXED_PRECISION"
    ),
    OtherLauncher(name="torchrun", size="WORLD_SIZE", rank="RANK", mark="TORCHELASTIC_RUN_ID"),
    OtherLauncher(name="deepspeed", size="WORLD_SIZE", rank="RANK", mark="CROSS_SIZE"),
    OtherLauncher(name="a launcher of torch.distributed", size="WORLD_SIZE", rank="RANK"),
)
"""In the order in which they are looked for: srun sets what mpiexec does, too."""


@dataclass(frozen=True, kw_only=True)
class StartedBy:
    """By whom this process was started as one of several.

    Attributes:
        launcher: Its name.
        num_processes: So many, > 1.
        rank: The number of this one, 0-based; one is enough to say what is wrong.
        is_certain: Whether only that launcher sets such variables; a scheduler may set the others.
    """

    launcher: str
    num_processes: int
    rank: int
    is_certain: bool = True

    def why_not(self, script: str) -> str:
        """Why a script is not run like this, in one line, and how it is.

        Args:
            script: As it stands behind `--` of `hetero-hvd run`.
        """
        return (
            f"{script} was started by {self.launcher} in {self.num_processes} processes, of which "
            f"each would train alone: start it once, by hetero-hvd run -f nodes.yaml -- {script}, "
            f"where nodes.yaml says how many workers run where ({GUIDE})"
        )

    def why_not_run(self) -> str:
        """Why `hetero-hvd run` itself is not started like this, in one line."""
        return (
            f"hetero-hvd run was started by {self.launcher} in {self.num_processes} processes, of "
            f"which each would start all workers: start it once, without {self.launcher}"
        )


def started_by(environment: Mapping[str, str]) -> StartedBy | None:
    """Who has started this process as one of several; None: nobody but ours and Horovod's.

    Args:
        environment: Of this process.
    """
    for known in OTHER_LAUNCHERS:
        size, rank = _number(environment, known.size), _number(environment, known.rank)
        is_marked = not known.mark or known.mark in environment
        if not is_marked or size is None or rank is None or size <= 1:
            continue
        if not _is_handed_down(known, environment):
            return StartedBy(
                launcher=known.name,
                num_processes=size,
                rank=rank,
                is_certain=bool(known.mark) or known.size != "WORLD_SIZE",
            )
    return None


def _is_handed_down(known: OtherLauncher, environment: Mapping[str, str]) -> bool:
    """Whether the nearest slurmstepd above has started its first process with that variable."""
    first: Mapping[str, str] = environment
    for process in ancestors():
        if match := _DAEMON.match(process.words[0]):
            number = whole_number(match[1])
            is_step = number is not None and number < FIRST_RESERVED
            is_its_own = is_step and known.sets_in_steps
            return not is_its_own and first.get(known.size) == environment[known.size]
        first = process.environment
    return False


def _number(environment: Mapping[str, str], name: str) -> int | None:
    return whole_number(environment.get(name, ""))
