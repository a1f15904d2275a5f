"""The Slurm jobs in which agents run: arrays that are submitted for the driver, and cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hetero_hvd.driver.workers.launchers.srun import NOT_OF_THIS_NODE
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm.batch_script import array_of
from hetero_hvd.slurm.jobs import COMPLETING, ENDED
from hetero_hvd.slurm.programs import ask

BEFORE, AFTER = "agents-", ".sh"
"""Around the name of a pool in the name of its batch script."""

END_SECONDS = 15.0
"""For cancelled jobs to be gone, and for those that end to be gone or waiting again."""

LOOK_SECONDS = 0.5
CONFIGURATION = "SLURM_CONF"
OF_A_JOB = ("SLURM", "SBATCH")
"""How variables begin that Slurm leaves in a job, and of which sbatch takes some for options."""


def of_no_job(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which sbatch takes no option from the job that it is called in."""
    return {
        name: value
        for name, value in environment.items()
        if name not in NOT_OF_THIS_NODE and (name == CONFIGURATION or not name.startswith(OF_A_JOB))
    }


class AgentTask(NamedTuple):
    """A task that Slurm lists.

    Attributes:
        array: The number of its array.
        task: Its own there; `N/A`: its job is no array.
        state: In capitals, such as `RUNNING`.
        pool: Whose agent it is.
    """

    array: str
    task: str
    state: str
    pool: str

    @property
    def label(self) -> str:
        """As people write it, and Slurm's programs are asked for it."""
        return f"{self.array}_{self.task}" if self.task.isdecimal() else self.array


class AgentJobs:
    """The arrays of one folder, a pool each. Which of them there are, only Slurm knows.

    What belongs to the folder has its path in the job's comment: numbers of jobs are used again,
    names are used by others.

    Args:
        folder: With the batch scripts, under the path by which all nodes know it.
        environment: Of this process.

    Attributes:
        pools: Their scripts, by name.

    Raises:
        UserError: There is no such script.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        scripts = sorted(folder.glob(f"{BEFORE}*{AFTER}"))
        self.pools = {path.name.removeprefix(BEFORE).removesuffix(AFTER): path for path in scripts}
        if not self.pools:
            raise UserError(
                f"--slurm-agents {folder}: there is no {BEFORE}NAME{AFTER} in it; write the folder "
                "with hetero-hvd deploy slurm"
            )
        self._environment = of_no_job(environment)
        self._arrays: dict[str, str] = {}

    def submit(self) -> dict[str, str]:
        """Submit what of the arrays Slurm has no more: agents end by themselves when they are idle.

        Returns:
            Their numbers, each with its pool.

        Raises:
            JobError: Slurm refuses one; those that were submitted here are cancelled then.
        """
        present = self._staying()
        new: dict[str, str] = {}
        try:
            for pool in sorted(self.pools):
                if (options := self._missing(pool, present)) is not None:
                    new[self._submitted(pool, *options)] = pool
        except JobError:
            self._cancel(new)
            raise
        self._arrays = {task.array: task.pool for task in present} | new
        return new

    def tasks_of_arrays(self) -> list[AgentTask]:
        """All tasks of the arrays that `submit` has found or submitted, ended ones included.

        Those that have ended are listed until Slurm forgets them.

        Raises:
            JobError: Slurm does not tell.
        """
        words = ("--all", "--array", "--states=all", f"--jobs={','.join(self._arrays)}")
        lines = ask("squeue", *words, "--noheader", "--format=%F %K %T").splitlines()
        found = [line.split() for line in lines]
        return [
            AgentTask(array, task, state, self._arrays[array])
            for array, task, state in found
            if array in self._arrays
        ]

    def present(self) -> dict[str, str]:
        """Numbers of the arrays that Slurm has tasks of, waiting or running, each with its pool.

        Raises:
            JobError: Slurm does not tell.
        """
        return {task.array: task.pool for task in self._tasks()}

    def cancel(self) -> dict[str, str]:
        """Cancel all of them, and wait a little until they are gone.

        Returns:
            What was cancelled, as `present` has it.

        Raises:
            JobError: Slurm does not tell, or refuses.
        """
        found = self.present()
        self._cancel(found)
        deadline = time.monotonic() + END_SECONDS
        while self.present() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return found

    def _staying(self) -> list[AgentTask]:
        """The tasks that run or will: one that ends may be over, or be requeued and wait soon."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            found = self._tasks()
            is_settled = not any(task.state == COMPLETING for task in found)
            if is_settled or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_SECONDS)
        return [task for task in found if task.state not in ENDED | {COMPLETING}]

    def _tasks(self) -> list[AgentTask]:
        """All that Slurm lists, also those that end."""
        # Of all partitions: some are hidden, or closed to others than those who run in them.
        words = ("--all", "--array", "--noheader", f"--user={os.getuid()}", "--format=%F %K %T %k")
        lines = ask("squeue", *words).splitlines()
        pools = {self._comment(pool): pool for pool in self.pools}
        jobs = [(*line.strip().split(" ", 3), "", "", "")[:4] for line in lines]
        return [
            AgentTask(array, task, state, pools[text])
            for array, task, state, text in jobs
            if text in pools
        ]

    def _missing(self, pool: str, present: list[AgentTask]) -> tuple[str, ...] | None:
        """Options of sbatch for what is missing of a pool; None: nothing is."""
        there = {found.task for found in present if found.pool == pool}
        if not there:
            return ()
        array = array_of(self.pools[pool].read_text(errors="replace"))
        numbers = {int(task) for task in there if task.isdecimal()}
        if array is None or array.tasks <= numbers:
            return None
        return (f"--array={array.without(numbers)}",)

    def _submitted(self, pool: str, *options: str) -> str:
        script = self.pools[pool]
        answer = ask(
            *("sbatch", "--parsable", f"--comment={self._comment(pool)}", *options, str(script)),
            folder=self._folder,
            environment=self._environment,
        )
        return answer.strip().partition(";")[0]  # behind it is the name of a federation's cluster

    def _comment(self, pool: str) -> str:
        return f"hetero-hvd:{pool}:{self._folder}"

    @staticmethod
    def _cancel(numbers: Iterable[str]) -> None:
        if words := tuple(numbers):
            ask("scancel", *words)
