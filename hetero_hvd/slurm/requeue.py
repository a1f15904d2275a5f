"""Another start of the same job, when Slurm has room again."""

from __future__ import annotations

import re

from hetero_hvd.errors import UserError
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.programs import ask


def check_requeue(granted: Allocation) -> None:
    """See that Slurm would start the job again.

    Raises:
        UserError: It would not; says what to do.
    """
    about = _about(granted.job_id)
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

    Slurm requeues what it preempts, and who has called scancel does not want the job again.

    Returns:
        What happens, in words.
    """
    state = _about(granted.job_id).get("JobState", "")
    if state != "RUNNING":
        return f"job {granted.label} is {state} already: Slurm decides whether it starts again"
    ask("scontrol", "requeue", granted.job_id)
    return f"job {granted.label} is requeued"


def _about(job_id: str) -> dict[str, str]:
    """What Slurm says of the job; of a heterogeneous one, of its first component."""
    text = ask("scontrol", "show", "job", "--oneliner", job_id).partition("\n")[0]
    return dict(re.findall(r"(\w+)=(\S*)", text))
