"""Waits until enough workers are ready to train together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hetero_hvd.config import NodesFile
from hetero_hvd.driver.controller import JobController
from hetero_hvd.driver.output.pulse import ASK_SECONDS
from hetero_hvd.errors import TryAgainError


class ReadyWorkers:
    """The workers of a job at its start, and after all of them were lost.

    Args:
        nodes_file: See `run_job`.
        team: Who starts them.
        say: Tells people, with the kind of line.
        logs: Folder of their logs.
    """

    def __init__(
        self, nodes_file: NodesFile, team: JobController, say: Callable[..., None], logs: Path
    ) -> None:
        self._nodes_file = nodes_file
        self._team = team
        self._say = say
        self._logs = logs

    async def gather(self, timeout_seconds: float, *, is_first: bool = True) -> None:
        """Until enough workers are ready that can train together.

        Args:
            timeout_seconds: In which the others have to come; see `_wait`.
            is_first: Whether the job begins.

        Raises:
            TryAgainError: Too few came.
        """
        await self._wait(timeout_seconds, is_first=is_first)
        while not self._team.reception.check_start():
            await self._wait(timeout_seconds, is_first=is_first)

    async def _wait(self, timeout_seconds: float, *, is_first: bool) -> None:
        """Until all workers are ready, or enough of them and the others have had their time.

        At the start, the time for that begins when enough nodes have announced themselves. It does
        not pass while too few are ready and others do something: they may prepare their data.
        """
        job = self._nodes_file.current.job
        slots = self._team.slots
        deadline = time.monotonic() + timeout_seconds
        is_waiting_for_nodes = False
        while True:
            num_ready, num_wanted = len(slots.available()), len(slots.all)
            may_grow = self._nodes_file.current.may_grow
            if may_grow and num_wanted < job.min_np:  # nothing was started that could be late
                if not is_waiting_for_nodes:
                    limit = "" if is_first else f", at most {timeout_seconds:g} s"
                    self._say(f"waiting for agents: {num_wanted} workers of {job.min_np}{limit}")
                is_waiting_for_nodes = True
                if is_first:
                    deadline = time.monotonic() + timeout_seconds
            num_due = sum(not slot.num_refusals for slot in slots.all)  # others have the rest
            num_enough = max(job.min_np, min(num_due, job.max_np or num_due))
            if num_ready >= num_enough and not slots.is_counting:
                return
            now_seconds = time.monotonic()
            is_missing = num_ready < job.min_np  # only then is it worth to wait for who is late
            if is_missing and any(slot.is_starting(now_seconds) for slot in slots.all):
                deadline = now_seconds + timeout_seconds
            left_seconds = deadline - now_seconds
            if left_seconds <= 0:
                break
            await self._team.wait_for_change(min(left_seconds, ASK_SECONDS))
        if num_ready < job.min_np:
            setting = "start_timeout_seconds" if is_first else "elastic_timeout_seconds"
            raise TryAgainError(
                f"{num_ready} of {num_wanted} workers were ready after {timeout_seconds:g} s in "
                f"which the others did nothing, min_np is {job.min_np}; look into {self._logs}, or "
                f"raise {setting}"
            )
        self._say(
            f"starting with {num_ready} of {num_wanted} workers; others join when ready",
            "progress",
        )
