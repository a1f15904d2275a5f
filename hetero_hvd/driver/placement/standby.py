"""Members without samples stand by while the others are faster without them.

What is decided is decided in `core.membership.set_aside`; here it is done, and told in a line each.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_hvd.config import ClusterConfig
from hetero_hvd.core.membership.set_aside import SetAsideMode, SetAsidePolicy
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import ScriptEnded, SetAsideReported, WorkerExited, WorkersJoined
from hetero_hvd.run.event_bus import EventBus


class Standby:
    """Observes the bus. Used in the loop's thread.

    Args:
        cluster: The settings; see `follow`.
        slots: The workers.
        bus: Is told of all that is done.
        say: Tells people.
        may_try: Whether nobody else has workers leave and come back just now.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        slots: WorkerPool,
        bus: EventBus,
        say: Callable[[str], None],
        may_try: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may_try = may_try
        self._slots = slots
        self._bus = bus
        self._say = say
        self._first_min_np = cluster.job.min_np
        self._policy = SetAsidePolicy(*self._settings(cluster))

    def follow(self, cluster: ClusterConfig) -> None:
        """Take the settings as they are now, after the workers have followed them."""
        if not self._slots.may_restart:
            return
        away = self._policy.away
        self._forget_others()
        started = away & {slot.worker for slot in self._slots.all if slot.is_wanted}
        self._do(self._policy.follow(*self._settings(cluster)))
        if started:
            nodes = ", ".join(sorted({worker.node for worker in started}))
            self._do(self._policy.take_back(f"the entry of {nodes} has changed"))

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus."""
        if not self._slots.may_restart:  # who leaves now could not come back
            return
        self._forget_others()
        match event:
            case WorkersJoined():
                self._do(self._policy.joined(event.workers))
            case WorkerExited():
                slot = self._slots.find(event.host)
                if slot is None or not isinstance(slot.last_word, ScriptEnded):
                    self._do(self._policy.lost(event.worker))
            case StepTable():
                may_try = not self._is_anyone_starting and self._may_try()
                self._do(self._policy.timed(event, may_try=may_try))

    def _settings(self, cluster: ClusterConfig) -> tuple[SetAsideMode, int, float]:
        # Horovod's driver keeps to what was so at the start, the pool to what is so now.
        job = cluster.job
        mode: SetAsideMode = job.set_aside if job.balance else "never"
        return mode, max(self._first_min_np, job.min_np), job.set_aside_seconds

    @property
    def _is_anyone_starting(self) -> bool:
        """Whether a worker may soon join, or leave; one that only waits for a slot does not."""
        return any(not slot.is_available and not slot.num_refusals for slot in self._slots.all)

    def _forget_others(self) -> None:
        """Of those whom the user has drained meanwhile, or whose entry has changed or is gone."""
        away = self._policy.away
        self._policy.forget(frozenset(w for w in away if not self._slots.is_withdrawn(w)))

    def _do(self, report: SetAsideReported | None) -> None:
        if report is None:
            return
        self._say(f"step {report.step}: {report.words}")
        self._bus.publish(report)
        if report.what == "tried":
            workers = [slot for slot in self._slots.all if slot.worker in report.workers]
            leaving = [slot for slot in workers if slot.is_wanted]
            self._slots.withdraw(leaving, f"set aside: {report.words}", "has no samples")
        elif report.what == "returned":
            self._slots.readmit(report.workers)
