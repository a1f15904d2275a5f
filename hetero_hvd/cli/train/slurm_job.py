"""`hetero-hvd run --slurm`: in the Slurm job that the command is called in."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Self

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.settings import flags_of
from hetero_hvd.config import NodeConfig, NodesFile
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.run.records.earlier_run import EarlierRun, same_run
from hetero_hvd.slurm.allocation import allocation, as_yaml
from hetero_hvd.slurm.driver_watch import DriverWatch
from hetero_hvd.slurm.node_loss import check_no_kill, note_of_first_part
from hetero_hvd.slurm.requeue import check_requeue, requeue_if_running
from hetero_hvd.slurm.time_limit import TimeLimit

AUTO = "auto"
"""`--resume auto`: go on from the newest checkpoint of the same Slurm job, if there is one."""

SILENCES = 15
"""As many times heartbeat_timeout_seconds, a driver that is silent is lost: by default a minute."""

NOT_THE_TASK = (
    "note: SIGTERM ends the shell of the batch script at once, and Slurm kills what it has "
    "started: write 'exec hetero-hvd run ...' there, so that the last state is kept"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("inside a Slurm job, see docs/guide/slurm.md")
    group.add_argument(
        "--slurm",
        action="store_true",
        help="train on the nodes of the Slurm job in which this is called; a file that -f names "
        "may hold settings, and more about these nodes",
    )
    group.add_argument(
        "--requeue",
        action="store_true",
        help="when the job has to end before the training, by SIGTERM or its time limit, let Slurm "
        f"start it again; with --resume {AUTO} it goes on",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what makes no sense outside of a Slurm job.

    Raises:
        UserError: It was given without --slurm.
    """
    if arguments.requeue:
        raise UserError("--requeue: has no effect without --slurm; add that, or leave it out")
    if arguments.resume == Path(AUTO) and not arguments.resume.exists():
        raise UserError(
            f"--resume {AUTO}: only a Slurm job has starts that belong together; add --slurm, or "
            "name the run"
        )


class SlurmJob:
    """The Slurm job that this command is called in: a `driver.ending.Lender`.

    Args:
        arguments: Of the command line.

    Attributes:
        nodes_file: Its nodes, with the settings of the job.

    Raises:
        UserError: It is in none, or that is not as it must be.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._granted = allocation(os.environ)
        check_no_kill(self._granted, os.environ)
        if note := note_of_first_part(self._granted):
            show(note)
        if os.environ.get("SLURM_TASK_PID", str(os.getpid())) != str(os.getpid()):
            show(NOT_THE_TASK)
        self._is_requeued = arguments.requeue
        if arguments.requeue:
            check_requeue(self._granted)
        self._paths = tuple(arguments.nodes_files or ())
        self._flags = flags_of(arguments)
        self._nodes = as_yaml(self._granted)
        self.nodes_file = self._read()
        job = self.nodes_file.current.job
        self._limit = TimeLimit(
            self._granted,
            leave_seconds=job.leave_seconds,
            stagger_seconds=job.leave_stagger_seconds,
        )
        self._watch = DriverWatch(
            self._other_nodes() if self._is_requeued else (),
            self._granted.job_id,
            silence_seconds=SILENCES * job.heartbeat_timeout_seconds,
        )

    def __enter__(self) -> Self:
        """The job starts: its time limit is followed, its driver is watched."""
        self._limit.follow()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever has become of it, the driver is no longer watched."""
        self._watch.close()

    def same_run(self) -> EarlierRun:
        """The run of this job's earlier starts, and the folder of all of them."""
        name = self._granted.run_name
        output = Path(self.nodes_file.current.job.output or Path("runs") / name)
        self._flags["output"] = str(output)
        self.nodes_file = self._read()
        return same_run(name, output)

    def must_end(self) -> str:
        """See `Lender`."""
        return self._limit.why_over()

    def ended(self, result: JobResult) -> None:
        """See `Lender`."""
        if self._is_requeued and result.is_called_off:
            try:
                show(requeue_if_running(self._granted))
            except JobError as error:
                show(f"the job is not requeued: {error}")

    def _other_nodes(self) -> list[NodeConfig]:
        """Those on which this process is not."""
        own = os.environ.get("SLURMD_NODENAME", "")
        nodes = self.nodes_file.current.nodes
        return [node for node in nodes if node.srun_options.get("nodelist") != own]

    def _read(self) -> NodesFile:
        return NodesFile(self._paths, os.environ, self._flags, granted=self._nodes)
