"""What Slurm says of a job now: its own word, as the environment may be that of another job.

What `sbatch` is called in hands its variables down: a job that an array's task submits has
`SLURM_ARRAY_TASK_ID`, too. Standard library only, as `programs`: `watch_program` asks here.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.errors import JobError
from hetero_hvd.slurm.programs import ask

FORMAT = "%A|%i|%T|%L|%N"
"""No text that a user may choose."""

RUNNING, SUSPENDED = "RUNNING", "SUSPENDED"
GOES_ON = frozenset({RUNNING, SUSPENDED, "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"})
"""States of a job that has its nodes and has not ended."""

COMPLETING = "COMPLETING"
"""A job's processes are ended; whether it is over or requeued, Slurm says only after that."""

HOLDING = GOES_ON | {COMPLETING}
"""States in which a job has its nodes; a job that has ended is listed with those that it had."""

FAILED = frozenset(
    {"BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"},
)
"""States of a job that nobody has ended in order: neither it itself nor scancel."""

ENDED = FAILED | {"CANCELLED", "COMPLETED", "PREEMPTED", "STAGE_OUT"}
"""States of a job that does not run again; Slurm lists some that have ended for a while."""

UNKNOWN = "Invalid job id"
"""What squeue says, as an error, when it is asked for a single job that Slurm has forgotten."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A line of `squeue`: a job, a task of an array, or a component of a heterogeneous job.

    Attributes:
        number: Slurm's own; of an array's last task it is that of the whole array.
        label: As people write it: `12`, of an array `12_3`, of a heterogeneous job `12+0`.
        state: In capitals, such as `RUNNING`.
        time_left: As `squeue` writes times.
        nodes: An expression such as `gpu[1-4]`; of a job that has ended, what it had; empty: none.
    """

    number: str
    label: str
    state: str
    time_left: str
    nodes: str

    @property
    def reference(self) -> str:
        """What to call the job so that all its components are meant, and no other task."""
        return self.label.partition("+")[0]

    @property
    def has_nodes(self) -> bool:
        """Whether it has its nodes now."""
        return bool(self.nodes) and self.state in HOLDING

    @property
    def group(self) -> int | None:
        """Component of a heterogeneous job; None: it is none."""
        offset = self.label.partition("+")[2]
        return int(offset) if offset.isdigit() else None


def job_records(reference: str, *, seconds: float | None = None) -> list[JobRecord]:
    """The lines of a job, in the order of its components; none: Slurm has forgotten it.

    Args:
        reference: Of the job. The number of an array's last task means all of its tasks.
        seconds: For Slurm's answer; None: as `ask` has it.

    Raises:
        JobError: Slurm does not say.
    """
    words = ("--noheader", "--states=all", f"--jobs={reference}", f"--format={FORMAT}")
    try:
        lines = ask("squeue", *words, seconds=seconds).splitlines()
    except JobError as error:
        if UNKNOWN not in str(error):
            raise
        lines = []
    fields = [line.strip().split("|") for line in lines if line.count("|") == FORMAT.count("|")]
    found = [
        JobRecord(number=number, label=label, state=state, time_left=left, nodes=nodes)
        for number, label, state, left, nodes in fields
    ]
    return sorted(found, key=lambda record: record.group or 0)


def state_of(reference: str) -> str:
    """The state of a job, of its first component if it has several; empty: it is forgotten.

    Raises:
        JobError: Slurm does not say.
    """
    records = job_records(reference)
    return records[0].state if records else ""
