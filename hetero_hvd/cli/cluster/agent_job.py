"""`hetero-hvd agent --slurm`: an agent that is a Slurm job of its own."""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from hetero_hvd.cli.lines import show
from hetero_hvd.config import JobConfig
from hetero_hvd.config.value_types import number as number_kind
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages.identity import shortened
from hetero_hvd.probes.kernel.machine_identity import machine_identity
from hetero_hvd.slurm.allocation import Allocation, allocation
from hetero_hvd.slurm.requeue import requeue_if_running
from hetero_hvd.slurm.time_limit import TimeLimit

logger = logging.getLogger(__name__)

TRIES, RETRY_SECONDS = 5, 20.0
"""At the start, of asking Slurm: a slurmctld that is busy for a minute costs no node."""

MAX_NAME = 64
PARTS = 16
"""Jobs that are no tasks of an array have different parts of the stagger, by their numbers."""

Answer = TypeVar("Answer")

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("as a Slurm job of its own, see docs/guide/slurm.md")
    group.add_argument(
        "--slurm",
        action="store_true",
        help="leave before the job's time limit and let Slurm start it again; the node's name "
        "follows from Slurm's, and other such jobs on the same machine are other nodes",
    )
    defaults = JobConfig()
    group.add_argument(
        "--leave-seconds",
        metavar="SECONDS",
        help=f"so long before the time limit it leaves (default: {defaults.leave_seconds:g})",
    )
    group.add_argument(
        "--leave-stagger-seconds",
        metavar="SECONDS",
        help="a part of it, which follows from the job's number in its array, is added to "
        f"--leave-seconds (default: {defaults.leave_stagger_seconds:g})",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what makes no sense outside of a Slurm job.

    Raises:
        UserError: It was given without --slurm.
    """
    for flag in ("leave_seconds", "leave_stagger_seconds"):
        if getattr(arguments, flag) is not None:
            words = flag.replace("_", "-")
            raise UserError(f"--{words}: has no effect without --slurm; add that, or leave it out")


class AgentJob:
    """The Slurm job in which an agent is called.

    Args:
        arguments: Of the command line.
        environment: Of this process.

    Attributes:
        name: Of the node: its name in Slurm, the job's, and the number in the array.
        machine: Identity of what the job has of the machine; the same after a requeue.

    Raises:
        UserError: It is in none, or that ends too soon.
    """

    def __init__(self, arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
        leave_seconds = _seconds(arguments, "leave_seconds")
        stagger_seconds = _seconds(arguments, "leave_stagger_seconds")
        found = _patiently(lambda: allocation(environment))
        if len(found.nodes) != 1:
            raise UserError(
                f"--slurm: found {len(found.nodes)} nodes in job {found.label}, must be 1, as an "
                "agent is a single node; add the line '#SBATCH --nodes=1'"
            )
        self._granted = found
        task = found.label.partition("_")[2]
        names = (found.nodes[0].slurm_name, environment.get("SLURM_JOB_NAME", ""), task)
        words = [_NOT_IN_A_NAME.sub("-", name).strip(".-") for name in names]
        self.name = shortened("-".join(word for word in words if word), MAX_NAME)
        whole = f"{machine_identity()} {found.label}"
        self.machine = hashlib.sha256(whole.encode()).hexdigest()[:32]
        leave_seconds += part_of(found, environment) * stagger_seconds
        self._limit = _patiently(
            lambda: TimeLimit(found, leave_seconds=leave_seconds, stagger_seconds=0.0)
        )
        self._limit.follow()

    def must_leave(self) -> str:
        """Why the agent has to leave now, in words; empty: it may stay."""
        return self._limit.why_over()

    def left(self) -> None:
        """The agent has left as it had to; it comes back when Slurm has room again."""
        try:
            show(requeue_if_running(self._granted))
        except JobError as error:
            show(f"the job is not requeued: {error}")


def part_of(granted: Allocation, environment: Mapping[str, str]) -> float:
    """From 0 to below 1: which part of the stagger is this job's; an array's tasks share it out.

    Args:
        granted: The job, whose label says whether it is a task.
        environment: Of this process; of a job that an array's task has submitted it is about that.
    """
    array, _, task = granted.label.partition("_")
    names = ("ARRAY_TASK_MIN", "ARRAY_TASK_COUNT")
    first, count = (whole_number(environment.get(f"SLURM_{name}", "")) for name in names)
    number = whole_number(task) if environment.get("SLURM_ARRAY_JOB_ID") == array else None
    if number is not None and first is not None and count:
        return (number - first) % count / count
    return granted.number % PARTS / PARTS


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """What Slurm answers, asked again where it does not."""
    for _ in range(TRIES - 1):
        try:
            return ask()
        except JobError as error:
            logger.warning("Slurm is asked again in %g s: %s", RETRY_SECONDS, error)
        time.sleep(RETRY_SECONDS)
    return ask()


def _seconds(arguments: argparse.Namespace, name: str) -> float:
    given = getattr(arguments, name)
    if given is None:
        return float(getattr(JobConfig(), name))
    kind = number_kind(minimum=0)
    try:
        return float(kind.read(given))
    except ValueError as error:
        flag = name.replace("_", "-")
        raise UserError(f"--{flag}: found {given!r}, must be {kind.allowed}") from error
