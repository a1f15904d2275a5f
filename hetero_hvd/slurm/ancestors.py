"""What this process was started by, as the kernel knows it: Slurm's daemons and commands above."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_hvd.errors import UserError

_STEP = re.compile(r"slurmstepd: \[[^\]]*\.([^\].]+)\]")
"""How a slurmstepd calls itself: `[12.batch]`, `[12.interactive]`, `[12.0]`, `[13+1.0]`."""

FIRST_RESERVED = 4294967280
"""Numbers from here on are no steps of srun's: the batch script, the shell of salloc."""


def ancestors() -> Iterator[list[str]]:
    """The command lines of this process, its parent, and so on."""
    pid = "self"
    with suppress(OSError, IndexError):
        while pid not in ("0", "1"):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            yield line.rstrip("\0").split("\0")
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = stat.rpartition(")")[2].split()[1]


def check_only_driver(environment: Mapping[str, str]) -> None:
    """See that no srun has started this several times.

    A step of one task may be a shell for people (`srun --pty bash`), and has one driver.

    Args:
        environment: Of this process. That it names a step says little where no slurmstepd is seen
            above: sbatch hands the variables of the step in which it was called down.

    Raises:
        UserError: It is one of several tasks.
    """
    seen = (match[1] for words in ancestors() if (match := _STEP.match(words[0])))
    step = next(seen, environment.get("SLURM_STEP_ID", ""))
    num_tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if step.isdigit() and int(step) < FIRST_RESERVED and num_tasks != "1":
        raise UserError(
            f"--slurm: srun has started this {num_tasks} times, and each would train by itself; "
            "call it once, without srun: it starts the workers on all nodes of the job"
        )
