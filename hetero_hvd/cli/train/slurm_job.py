"""`hetero-hvd run --slurm`: in the Slurm job that the command is called in."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.settings import flags_of
from hetero_hvd.config import NodeConfig, NodesFile
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.run.records.earlier_run import EarlierRun, earlier_run, is_url, same_run
from hetero_hvd.slurm.allocation import allocation, as_yaml
from hetero_hvd.slurm.driver_watch import DriverWatch
from hetero_hvd.slurm.node_loss import check_no_kill, note_of_first_part
from hetero_hvd.slurm.requeue import check_requeue, requeue_if_running
from hetero_hvd.slurm.time_limit import TimeLimit

AUTO = "auto"
"""`--resume auto`: go on from the newest checkpoint of an earlier start, if there is one."""

SILENCES = 15
"""As many times heartbeat_timeout_seconds of silence, and Slurm is asked: by default a minute."""

MAX_NAMES = 8
"""Of nodes in one note."""

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
        f"start it again; goes on as with --resume {AUTO} unless --resume names a run",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what makes no sense outside of a Slurm job.

    Raises:
        UserError: It was given without --slurm.
    """
    if arguments.requeue:
        raise UserError("--requeue: has no effect without --slurm; add that, or leave it out")


def _note_of_others(names: Sequence[str]) -> str:
    """What is to be known of nodes that a file lists and Slurm has not granted; empty: none."""
    if not names:
        return ""
    shown = ", ".join(names[:MAX_NAMES]) + ", ..." * (len(names) > MAX_NAMES)
    return f"note: not granted by Slurm, so that nothing of them in -f has an effect: {shown}"


class SlurmJob:
    """The Slurm job that this command is called in: a `driver.ending.Lender`.

    Args:
        arguments: Of the command line.

    Attributes:
        nodes_file: Its nodes, with the settings of the job.
        repeats_sigterm: See `Lender`: Slurm warns, ends steps and jobs by it, and so does scancel.

    Raises:
        UserError: It is in none, or that is not as it must be.
    """

    repeats_sigterm = True

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._granted = allocation(os.environ)
        notes = [check_no_kill(self._granted, os.environ), note_of_first_part(self._granted)]
        if os.environ.get("SLURM_TASK_PID", str(os.getpid())) != str(os.getpid()):
            notes.append(NOT_THE_TASK)
        self._is_requeued = arguments.requeue
        if arguments.requeue:
            check_requeue(self._granted)
        self._paths = tuple(arguments.nodes_files or ())
        self._flags = flags_of(arguments)
        self._nodes = as_yaml(self._granted)
        self.nodes_file = self._read()
        notes.append(_note_of_others(self.nodes_file.not_granted))
        for note in filter(None, notes):
            show(note)
        job = self.nodes_file.current.job
        self._limit = TimeLimit(
            self._granted,
            leave_seconds=job.leave_seconds,
            stagger_seconds=job.leave_stagger_seconds,
        )
        self._watch = DriverWatch(
            self._other_nodes() if self._is_requeued else (),
            self._granted.label,
            self._own_node(),
            silence_seconds=SILENCES * job.heartbeat_timeout_seconds,
        )

    def start(self) -> None:
        """The job starts: its time limit is followed, its driver is watched."""
        self._limit.follow()
        self._watch.start()

    def close(self) -> None:
        """Whatever has become of it, the driver is no longer watched."""
        self._watch.close()

    def resumed(self, place: Path | str | None) -> EarlierRun | None:
        """The run to go on from; None: there is none.

        Args:
            place: As `--resume` gives it.

        Raises:
            UserError: Each of the job's starts would begin at the same place.
        """
        if place == Path(AUTO) or (place is None and self._is_requeued):
            return self._same_run()
        if place is None:
            return None
        earlier = earlier_run(place)
        job = self.nodes_file.current.job
        is_kept_there = job.output in (None, str(place)) and job.checkpoint_url is None
        if self._is_requeued and (is_url(earlier.checkpoints) or not is_kept_there):
            raise UserError(
                f"--resume {place}: with --requeue each start would begin there again, as the new "
                "state is kept elsewhere; give a run's folder, without --output and "
                f"--checkpoint-url, or --resume {AUTO}"
            )
        return earlier

    def _same_run(self) -> EarlierRun:
        """The run of this job's earlier starts, and the folder of all of them."""
        name = self._granted.run_name
        output = Path(self.nodes_file.current.job.output or Path("runs") / name)
        self._flags["output"] = str(output)
        self.nodes_file = self._read()
        return same_run(name, output)

    def must_end(self) -> str:
        """See `Lender`."""
        return self._limit.why_over()

    def news(self) -> Sequence[str]:
        """See `Lender`: the steps are ours, and heard of."""
        return ()

    def ended(self, result: JobResult) -> None:
        """See `Lender`."""
        if self._is_requeued and result.is_called_off:
            try:
                show(requeue_if_running(self._granted))
            except JobError as error:
                show(f"the job is not requeued: {error}")

    def _other_nodes(self) -> list[NodeConfig]:
        """Those on which this process is not."""
        own = self._own_node()
        nodes = self.nodes_file.current.nodes
        return [node for node in nodes if node.srun_options.get("nodelist") != own]

    def _own_node(self) -> str:
        """Where this process is, as Slurm calls it: the first one, as the job is a batch job.

        The variable may be that of a job around this one, as salloc sets none.
        """
        names = [node.slurm_name for node in self._granted.nodes]
        own = os.environ.get("SLURMD_NODENAME")
        return own if own in names else names[0]

    def _read(self) -> NodesFile:
        return NodesFile(self._paths, os.environ, self._flags, granted=self._nodes)
