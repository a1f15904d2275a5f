"""Agents' jobs that fail, as by a wrong path in their script: nobody else hears of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from hetero_hvd.core.backoff import doubled
from hetero_hvd.errors import JobError
from hetero_hvd.slurm.agent_jobs import AgentJobs, AgentTask
from hetero_hvd.slurm.jobs import COMPLETING, FAILED, GOES_ON
from hetero_hvd.slurm.programs import ask

FIRST_SECONDS, MAX_SECONDS = 5.0, 60.0
"""Between two looks, which doubles: slurmctld serves many jobs, and forgets one 300 s after its
end, unless MinJobAge says otherwise."""

TAIL_BYTES, MAX_WORDS = 4096, 200


class AgentFailures:
    """Looks, in a thread from `follow` on, for pools of which tasks have failed and none runs.

    Args:
        jobs: The agents' arrays.
    """

    def __init__(self, jobs: AgentJobs) -> None:
        self._jobs = jobs
        self._told = set[str]()
        self._lines = SimpleQueue[str]()
        self._is_closed = threading.Event()

    def follow(self) -> None:
        """Look again and again from now on; the arrays are submitted."""
        threading.Thread(target=self._follow, name="failed agents", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._is_closed.set()

    def news(self) -> list[str]:
        """What has been found since the last call: a line for each pool, once."""
        found = list[str]()
        with suppress(Empty):
            while True:
                found.append(self._lines.get_nowait())
        return found

    def look(self) -> None:
        """Look once.

        Raises:
            JobError: Slurm does not tell.
        """
        tasks = self._jobs.tasks_of_arrays()
        for pool in sorted({task.pool for task in tasks} - self._told):
            found = [task for task in tasks if task.pool == pool]
            if failed := failed_tasks(found):
                self._told.add(pool)
                self._lines.put(_in_words(pool, failed, len(found)))

    def _follow(self) -> None:
        num_looks = 0
        while not self._is_closed.wait(doubled(FIRST_SECONDS, num_looks, MAX_SECONDS)):
            num_looks += 1
            with suppress(JobError):  # it is asked again
                self.look()


def failed_tasks(tasks: Iterable[AgentTask]) -> list[AgentTask]:
    """Those of a pool that have failed, while none of it runs; one that ends may yet fail."""
    found = list(tasks)
    if any(task.state in GOES_ON or task.state == COMPLETING for task in found):
        return []
    return [task for task in found if task.state in FAILED]


def _in_words(pool: str, failed: list[AgentTask], num_tasks: int) -> str:
    label = failed[0].label
    how, log = _of_job(label)
    said = f"agents {pool}: {len(failed)} of {num_tasks} have failed and none runs"
    return f"{said}; job {label} is {failed[0].state}{how}{_log_in_words(log)}"


def _of_job(label: str) -> tuple[str, str]:
    """With what a job ended, in words, and the path of its log; empty: Slurm does not say."""
    try:
        text = ask("scontrol", "show", "job", label)
    except JobError:
        return "", ""
    code = re.search(r"\bExitCode=(\d+):(\d+)", text)
    log = re.search(r"^\s*StdOut=(.*)$", text, re.MULTILINE)
    how = ""
    if code is not None:
        how = f", signal {code[2]}" if code[2] != "0" else f", exit code {code[1]}"
    return how, log[1] if log else ""


def _log_in_words(log: str) -> str:
    if not log:
        return ""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, Path(log).stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError as error:
        return f"; its log {log} cannot be read: {error.strerror}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"; its log {log} ends with: {last[:MAX_WORDS]}"
