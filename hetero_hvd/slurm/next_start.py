"""Whether Slurm starts a job again that it has told to end."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.programs import ask

RESTARTS = "SLURM_RESTART_COUNT"
"""How often the job was started again until this start; not set in the first one."""


def starts_again(granted: Allocation, environment: Mapping[str, str]) -> bool:
    """Whether there is another start of a job that ends, by preemption or by a requeue.

    Its state says COMPLETING, whether it was requeued or cancelled. But Slurm counts another start
    as soon as it has decided on it, while this process has the count of its own start.

    Args:
        granted: The job.
        environment: Of this process.

    Raises:
        JobError: Slurm does not tell.
    """
    text = ask("scontrol", "show", "job", "--oneliner", granted.label).partition("\n")[0]
    found = re.search(r"\bRestarts=(\d+)", text)
    own = environment.get(RESTARTS, "")
    return found is not None and int(found[1]) > (int(own) if own.isdecimal() else 0)
