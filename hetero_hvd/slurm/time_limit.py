"""When Slurm ends the job, which may be changed while it runs."""

from __future__ import annotations

import logging
import math
import re
import threading
import time

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.jobs import job_records

logger = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Between two questions to Slurm: slurmctld serves many jobs."""

FOLLOW_SECONDS = 5.0
"""For an answer of a Slurm that has answered before."""

AHEAD_SECONDS = 10.0
"""So long before the job has to end Slurm is asked once more, so that its answer is there then."""

FRESH_SECONDS = 20.0
"""So long an answer counts for that; an older one may be from before the job was suspended."""

PARTS = 16
"""Jobs with numbers in a row have different parts of the stagger."""

OVER = "INVALID"
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class TimeLimit:
    """Follows the job's time limit in a thread, from `follow` on.

    Args:
        granted: The job.
        leave_seconds: So long before its end it has to be over.
        stagger_seconds: Of which a part of the job's own is added.

    Raises:
        UserError: Less than that is left already.
    """

    def __init__(
        self, granted: Allocation, *, leave_seconds: float, stagger_seconds: float
    ) -> None:
        self._label = granted.label
        self._margin_seconds = leave_seconds + stagger_seconds * part_of(granted)
        self._asks_at_once = threading.Event()
        self._end_at_seconds = self._asked()
        self._asked_at_seconds = time.monotonic()
        left_seconds = self._end_at_seconds - time.monotonic()
        if left_seconds <= self._margin_seconds:
            raise UserError(
                f"job.leave_seconds: {self._margin_seconds:.0f} s before the time limit the "
                f"workers have to end, and {left_seconds:.0f} s are left; ask sbatch for more "
                "--time, or give a smaller --leave-seconds"
            )

    def follow(self) -> None:
        """Ask again and again from now on."""
        threading.Thread(target=self._follow, name="time limit", daemon=True).start()

    def why_over(self) -> str:
        """Why the job has to end now; empty: it may go on.

        A job that was suspended has as much time as before, though our clock went on. So Slurm is
        asked once more first, and its earlier answer holds if it does not answer soon.
        """
        now_seconds = time.monotonic()
        left_seconds = self._end_at_seconds - now_seconds
        spare_seconds = left_seconds - self._margin_seconds
        is_fresh = now_seconds - self._asked_at_seconds < FRESH_SECONDS
        if spare_seconds < AHEAD_SECONDS and not is_fresh:
            self._asks_at_once.set()
        if spare_seconds > 0 or not is_fresh:
            return ""
        return f"Slurm's time limit is reached in {max(0.0, left_seconds):.0f} s"

    def _follow(self) -> None:
        while True:
            self._asks_at_once.wait(LOOK_SECONDS)
            try:
                self._end_at_seconds = self._asked(FOLLOW_SECONDS)
            except JobError as error:  # the earlier answer holds
                logger.warning("the time limit is not known: %s", error)
            self._asked_at_seconds = time.monotonic()
            self._asks_at_once.clear()  # of whoever has wished for it meanwhile

    def _asked(self, seconds: float | None = None) -> float:
        before = time.monotonic()
        answers = [job.time_left for job in job_records(self._label, seconds=seconds)]
        return before + min(map(seconds_of, answers), default=math.inf)


def seconds_of(text: str) -> float:
    """What `squeue` calls the time that is left; infinite for what is no time, as UNLIMITED.

    It is INVALID when it is over: OverTimeLimit lets a job go on for a while.
    """
    if text == OVER:
        return 0.0
    if (match := _LEFT.fullmatch(text)) is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def part_of(granted: Allocation) -> float:
    """From 0 to below 1: which part of the stagger is this job's."""
    return granted.number % PARTS / PARTS
