"""What follows from too few workers, or too little memory: a pause, or an end that may pass."""

from __future__ import annotations

from hetero_hvd.config import JobConfig
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.errors import InfeasiblePlanError
from hetero_hvd.exit_codes import exit_of_user_error
from hetero_hvd.messages import StateDivided, WorkersJoined
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.tracking.run_tracker import RunTracker


class MinWorkersNotice:
    """Says it once, each time.

    That the memory is too small the workers find, and say, themselves.

    Args:
        job: For min_np, and how long to wait.
        slots: The workers' processes.
        membership: Who of them trains.
        tracker: Knows whose script has ended.
        console: Where to tell people.
        bus: All that happens.

    Attributes:
        is_memory_short: Whether the members wait for others with memory.
    """

    def __init__(
        self,
        job: JobConfig,
        slots: WorkerPool,
        membership: Membership,
        tracker: RunTracker,
        console: Console,
        *,
        bus: EventBus,
    ) -> None:
        self._job = job
        self._slots = slots
        self._membership = membership
        self._tracker = tracker
        self._console = console
        self._is_short = False
        self.is_memory_short = False
        bus.subscribe(self._observe, "")

    def _observe(self, _at_unix_seconds: float, event: object) -> None:
        """Follow whether the members train."""
        if isinstance(event, WorkersJoined | StateDivided):
            self.is_memory_short = isinstance(event, StateDivided) and event.is_short

    def look(self, *, is_ended: bool) -> None:
        """Call it often; nothing is said once the job is over."""
        num_left = len(self._slots.available())
        records = self._tracker.summary.workers
        is_ending = any(records[worker].end for worker in self._tracker.workers)
        goes_on = bool(self._membership.rendezvous.waiting) or not is_ending
        is_short = self._membership.has_started and num_left < self._job.min_np and goes_on
        if is_short and not self._is_short and not is_ended:
            self._console.say(
                f"paused: {num_left} workers are left, min_np is {self._job.min_np}; waiting for "
                f"others, at most {self._job.elastic_timeout_seconds:g} s"
            )
        self._is_short = is_short

    def judged(self, error: InfeasiblePlanError) -> JobResult:
        """The end of a job whose members cannot hold the batch: it may fit with others.

        Nothing more of the members is shown: the same error ends them, and one line is enough.

        Args:
            error: What was raised.

        Returns:
            It may pass if workers are missing for whom the batch was too large, or more may come.
        """
        for slot in self._slots.all:
            slot.output.drop()
        is_incomplete = len(self._tracker.workers) < len(self._slots.all)
        has_lost = any(record.exit_codes for record in self._tracker.summary.workers.values())
        may_pass = self._job.discover or is_incomplete or has_lost
        return JobResult(exit_of_user_error(may_pass=may_pass), str(error))
