"""`hetero-hvd run --slurm-agents DIR`: on agents, each of which is a Slurm job of its own."""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.settings import NODES_FILE, flags_of
from hetero_hvd.config import NodesFile
from hetero_hvd.config.paths import some_path
from hetero_hvd.deploy.slurm import RUN, shared_path
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.errors import JobError, TryAgainError, UserError, job_error
from hetero_hvd.run.records.earlier_run import EarlierRun, same_run
from hetero_hvd.run.records.run_files import lock_folder
from hetero_hvd.slurm.agent_failures import AgentFailures
from hetero_hvd.slurm.agent_jobs import AgentJobs
from hetero_hvd.slurm.allocation import Allocation, allocation
from hetero_hvd.slurm.driver_address import free_port, told_address
from hetero_hvd.slurm.requeue import Starts, check_requeue, requeue_if_running
from hetero_hvd.slurm.time_limit import TimeLimit
from hetero_hvd.whole_file import write_whole

RUN_NAME = "run.name"
"""In the folder: what the run's checkpoints are called in all its starts."""

MAX_WORD = 40
"""Characters of the folder's name in that of the run; a random end tells runs apart."""

INSIDE = "SLURM_JOB_ID"
"""The variable by which a process knows that it is in a Slurm job."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("beside Slurm jobs, see docs/guide/slurm.md")
    group.add_argument(
        "--slurm-agents",
        type=some_path,
        metavar="DIR",
        help="train on agents that are Slurm jobs: submit those of DIR, which `hetero-hvd deploy "
        "slurm` has written, go on from DIR's newest checkpoint, and cancel them at the end",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what is decided already.

    Raises:
        UserError: It was given beside --slurm-agents.
    """
    for flag in ("slurm", "requeue", "resume"):
        if getattr(arguments, flag):
            raise UserError(
                f"--{flag}: cannot be given with --slurm-agents, which follows its own Slurm job, "
                "if it is in one, and goes on from DIR's newest checkpoint; leave it out"
            )


class SlurmAgents:
    """The jobs of the agents, and the job of this driver, if it is in one: a `Lender`.

    Args:
        arguments: Of the command line.

    Attributes:
        nodes_file: The settings of the job.
        repeats_sigterm: See `Lender`: Slurm does.

    Raises:
        UserError: The folder is not as it must be, or its driver runs already.
    """

    repeats_sigterm = True

    def __init__(self, arguments: argparse.Namespace) -> None:
        check_flags(arguments)
        as_nodes_know_it = os.path.abspath(arguments.slurm_agents)  # noqa: PTH100 - links stay
        self._folder = shared_path("--slurm-agents", Path(as_nodes_know_it))
        self._jobs = AgentJobs(self._folder, os.environ)
        self._failures = AgentFailures(self._jobs)
        self._held = ExitStack()
        self._hold()
        flags = flags_of(arguments)
        paths = tuple(arguments.nodes_files or (self._folder / NODES_FILE,))
        settings = NodesFile(paths, os.environ, flags).current.job
        flags["output"] = settings.output or str(self._folder / RUN)
        flags["listen"] = str(settings.listen or free_port())
        self.nodes_file = NodesFile(paths, os.environ, flags)
        self._granted = _own_job()
        self._starts = _starts_of(self._granted)
        self._limit = self._time_limit()
        self._are_theirs = False

    def start(self) -> None:
        """The driver's place is told, and the agents that are not there are submitted.

        Raises:
            JobError: Slurm refuses them.
        """
        job = self.nodes_file.current.job
        if self._limit is not None:
            self._limit.follow()
        told = told_address(self._folder, job.listen, job.driver_address)
        show(f"agents find this driver at {', '.join(self._held.enter_context(told))}")
        for number, pool in self._jobs.submit().items():
            show(f"agents {pool} are job {number}")
        self._failures.follow()

    def close(self) -> None:
        """Unless the training goes on in another start, nobody needs the agents any more."""
        self._failures.close()
        try:
            if not self._are_theirs:
                for number, pool in self._jobs.cancel().items():
                    show(f"agents {pool} are ended: job {number} is cancelled")
        except JobError as error:
            show(f"the agents end by themselves when they have been idle for long enough: {error}")
        finally:
            self._held.close()

    def same_run(self) -> EarlierRun:
        """The run of the earlier starts."""
        path = self._folder / RUN_NAME
        try:
            if not path.exists():
                name = f"{_word(self._folder.name)}-{secrets.token_hex(4)}\n"
                write_whole(path, name.encode())
            name = path.read_text().strip()
        except OSError as error:
            raise job_error(f"{path}: cannot be used: {error.strerror}", error) from error
        return same_run(name, Path(self.nodes_file.current.job.output or RUN))

    def must_end(self) -> str:
        """See `Lender`."""
        return "" if self._limit is None else self._limit.why_over()

    def news(self) -> Sequence[str]:
        """See `Lender`: agents that have failed."""
        return self._failures.news()

    def ended(self, result: JobResult) -> None:
        """See `Lender`."""
        if not result.is_called_off:
            return
        if self._granted is None or self._starts is None:
            self._are_theirs = True
            show("the agents stay until they have been idle for long enough; start this again")
            return
        try:
            show(requeue_if_running(self._granted))
            self._are_theirs = self._starts.is_another_decided()
        except JobError as error:
            show(f"the job is not requeued: {error}")

    def _time_limit(self) -> TimeLimit | None:
        if self._granted is None:
            return None
        job = self.nodes_file.current.job
        return TimeLimit(
            self._granted,
            leave_seconds=job.leave_seconds,
            stagger_seconds=job.leave_stagger_seconds,
        )

    def _hold(self) -> None:
        """Be the only driver of the folder, until this process ends in whatever way."""
        try:
            descriptor = lock_folder(self._folder)
        except OSError as error:
            words = f"{self._folder}: cannot be used: {error.strerror}"
            raise job_error(words, error) from error
        if descriptor is None:
            raise TryAgainError(
                f"--slurm-agents {self._folder}: its driver runs already; wait for its end, or "
                "write another folder"
            )
        self._held.callback(os.close, descriptor)


def _word(text: str) -> str:
    """What of a folder's name may stand in the name of a run, and thus of its checkpoints."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:MAX_WORD] or "run"


def _own_job() -> Allocation | None:
    """The Slurm job that this process runs in; None: it is on a login node, say."""
    if INSIDE not in os.environ:
        return None
    try:
        return allocation(os.environ)
    except UserError as error:
        show(f"note: this driver follows no Slurm job of its own: {error}")
        return None


def _starts_of(granted: Allocation | None) -> Starts | None:
    """The starts of this driver's own job; None: it does not start again by itself."""
    if granted is None:
        return None
    try:
        check_requeue(granted)
    except UserError as error:
        show(f"note: this driver does not start again by itself: {error}")
        return None
    return Starts(granted)
