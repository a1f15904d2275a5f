"""Another start of the same job, when Slurm has room again."""

from __future__ import annotations

import re
import time
from contextlib import suppress

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.jobs import RUNNING, state_of
from hetero_hvd.slurm.programs import ask

DELAYS_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Between two orders to requeue, if slurmctld refuses or is away."""


def check_requeue(granted: Allocation) -> None:
    """See that Slurm would start the job again.

    Raises:
        UserError: It would not; says what to do.
    """
    about = _about(granted)
    if about.get("BatchFlag") == "0":
        raise UserError(
            f"--requeue: job {granted.label} is no batch job, and Slurm starts only those again; "
            "submit it with sbatch, or leave --requeue out"
        )
    if about.get("Requeue") == "0":
        raise UserError(
            f"--requeue: job {granted.label} was submitted with --no-requeue, or Slurm's "
            "JobRequeue is 0; add the line '#SBATCH --requeue'"
        )


def requeue_if_running(granted: Allocation) -> str:
    """Start the job again later, unless Slurm has decided already what becomes of it.

    Slurm requeues what it preempts, and who has called scancel does not want the job again. A busy
    slurmctld may do what it is told and give no answer in time: then its count of starts tells.

    Returns:
        What happens, in words.

    Raises:
        JobError: Slurm does not do it, however often it is asked.
    """
    starts = None
    with suppress(JobError):
        starts = Starts(granted)
    for delay_seconds in DELAYS_SECONDS:
        with suppress(JobError):
            return _requeue_if_running(granted.label, starts)
        time.sleep(delay_seconds)
    return _requeue_if_running(granted.label, starts)


def _requeue_if_running(label: str, starts: Starts | None) -> str:
    state = state_of(label) or "forgotten"
    if state == RUNNING:
        ask("scontrol", "requeue", label)
    elif starts is None or not starts.is_another_decided():
        return f"job {label} is {state} already: Slurm decides whether it starts again"
    return f"job {label} is requeued"


class Starts:
    """How often a job is started, by Slurm's own count.

    A job's state says COMPLETING, whether it was requeued or cancelled. But Slurm counts another
    start as soon as it has decided on it, so that its count is another one than at the begin of
    this start. (SLURM_RESTART_COUNT may be that of the job in which sbatch was called.)

    Args:
        granted: The job, of which this start has begun.

    Raises:
        JobError: Slurm does not tell.
    """

    def __init__(self, granted: Allocation) -> None:
        self._granted = granted
        self._own = self._asked()

    def is_another_decided(self) -> bool:
        """Whether there is another start of the job, after a preemption or a requeue.

        Raises:
            JobError: Slurm does not tell.
        """
        return self._asked() > self._own

    def _asked(self) -> int:
        """So many starts after the first one; 0 as well where Slurm has no such field."""
        return int(_about(self._granted).get("Restarts", 0))


def is_batch_job(granted: Allocation) -> bool:
    """Whether the job has a script, which Slurm can start again."""
    return _about(granted).get("BatchFlag") != "0"


def _about(granted: Allocation) -> dict[str, str]:
    """How Slurm would start the job again; of a heterogeneous one, its first component."""
    text = ask("scontrol", "show", "job", "--oneliner", granted.label).partition("\n")[0]
    fields = re.search(r"\sRequeue=\d+ Restarts=\d+ BatchFlag=\d+", text)
    return dict(re.findall(r"(\w+)=(\S*)", fields[0] if fields else ""))
