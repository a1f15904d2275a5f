"""All that the queue knows, and what each event changes in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_hvd.core.queue.device_classes import ClassTable
from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.fair_share import FairShare, ShareFacts
from hetero_hvd.core.queue.healing import CAUSE_IN_WORDS, FailureCause, retry_after_seconds
from hetero_hvd.core.queue.jobs import JobRequest, QueuedJob
from hetero_hvd.core.queue.measured.link_book import LinkBook, MeasuredSet
from hetero_hvd.core.queue.measured.model_book import MeasuredModel, ModelBook
from hetero_hvd.core.queue.queue_events import (
    DeviceAdded,
    DeviceChanged,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobIdled,
    JobMeasured,
    JobMoved,
    JobProgressed,
    JobReleased,
    JobSubmitted,
    LinksMeasured,
    ModelTold,
    ModelTried,
    PoolsChanged,
    QueueDecision,
    QueueEvent,
)
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.errors import InvariantError, UserError


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a `QueueState` knows beside its jobs and devices.

    Attributes:
        clock_seconds: Its time.
        num_submitted: Jobs so far.
        fair_share: What users have had.
        links: What was measured of links.
        models: What was measured of models.
    """

    clock_seconds: float
    num_submitted: int
    fair_share: ShareFacts
    links: tuple[MeasuredSet, ...] = ()
    models: tuple[MeasuredModel, ...] = ()


class QueueState:
    """Jobs, devices and what users have had. Events and decisions are the only ways to change it.

    Args:
        devices: Of the cluster.
        pools: With settings of their own; a pool that only devices name lends and has no limit.
        settings: Of the policy.

    Attributes:
        jobs: Name to job, of those that have not ended.
        ended: Name to job, of those that have.
        clock_seconds: The latest time that was passed in. It never goes back: an event that comes
            with an earlier time happens now.
    """

    def __init__(
        self,
        devices: Iterable[QueueDevice],
        pools: Sequence[DevicePool] = (),
        settings: QueueSettings | None = None,
    ) -> None:
        self.settings = settings or QueueSettings()
        self.pools = {pool.pool: pool for pool in pools}
        self.devices = {each.device: each for each in devices}
        self.jobs: dict[str, QueuedJob] = {}
        self.ended: dict[str, QueuedJob] = {}
        self.fair_share = FairShare(self.settings.half_life_seconds)
        self.clock_seconds = -math.inf
        self._links = LinkBook()
        self._models = ModelBook()
        self._num_submitted = 0
        self._followers: dict[str, list[str]] = {}
        self._table: ClassTable | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            JobSubmitted: self._submitted,
            JobProgressed: self._progressed,
            ModelTold: self._model_told,
            ModelTried: self._model_tried,
            JobMeasured: self._measured,
            LinksMeasured: self._links_measured,
            JobIdled: self._idled,
            JobFinished: self._finished,
            JobFailed: self._failed,
            JobCancelled: self._cancelled,
            JobHeld: self._held,
            JobReleased: self._released,
            JobMoved: self._moved,
            DeviceChanged: self._device_changed,
            DeviceAdded: self._device_added,
            PoolsChanged: self._pools_changed,
        }

    @property
    def facts(self) -> QueueFacts:
        """All of it but the jobs, for the disk."""
        return QueueFacts(
            self.clock_seconds,
            self._num_submitted,
            self.fair_share.facts,
            self._links.facts,
            self._models.facts,
        )

    def put_back(self, facts: QueueFacts, jobs: Iterable[QueuedJob]) -> None:
        """Go on from there: it decides as the state that was kept would have.

        Args:
            facts: Of the state.
            jobs: All of them, in the order in which they were submitted.
        """
        self.clock_seconds = facts.clock_seconds
        self._num_submitted = facts.num_submitted
        self.fair_share.put_back(facts.fair_share)
        self._links = LinkBook(facts.links)
        self._models = ModelBook(facts.models)
        for job in jobs:
            (self.ended if job.phase == "ended" else self.jobs)[job.request.job] = job
        for name, job in self.jobs.items():
            for before in job.request.after:
                if before in self.jobs:
                    self._followers.setdefault(before, []).append(name)
        self._table = None

    def forget(self, name: str) -> None:
        """Keep nothing of a job that has ended."""
        del self.ended[name]

    @property
    def table(self) -> ClassTable:
        """The devices that may be leased, by class."""
        if self._table is None:
            named = frozenset().union(*(_named(job.request) for job in self.jobs.values()))
            links = self._links.costs(self.clock_seconds)
            self._table = ClassTable(
                tuple(self.devices.values()), self.pools, named=named, links=links
            )
        return self._table

    def handle(self, event: QueueEvent, now_seconds: float) -> None:
        """Take note of what has happened.

        Raises:
            UserError: It names a job or a device that there is not, or a name twice.
        """
        self.advance(now_seconds)
        self._handlers[type(event)](event)

    def advance(self, now_seconds: float) -> float:
        """Count what jobs and users have had until now.

        Returns:
            The time, which is never earlier than before.
        """
        if self.clock_seconds == -math.inf:
            self.clock_seconds = now_seconds
        now = max(now_seconds, self.clock_seconds)
        seconds = now - self.clock_seconds
        if seconds:
            speeds: dict[str, float] = {}
            for job in self.jobs.values():
                if job.devices:
                    speed = sum(self.devices[name].relative_speed for name in job.devices)
                    job.lease_seconds += seconds
                    job.attained_seconds += speed * seconds
                    user = job.request.user
                    speeds[user] = speeds.get(user, 0.0) + speed
            self.fair_share.charge(speeds, seconds, now)
            self._reach(now)
        return now

    def _reach(self, now_seconds: float) -> None:
        self.clock_seconds = now_seconds
        if self._table is not None and now_seconds >= self._table.links.until_seconds:
            self._table = None

    def pass_over(self, now_seconds: float) -> None:
        """Time has passed in which nothing ran, whoever has devices: nobody is charged for it."""
        self._reach(max(now_seconds, self.clock_seconds))

    def apply(self, decisions: Iterable[QueueDecision]) -> None:
        """Take note that decisions are carried out, at the state's time."""
        now = self.clock_seconds
        for decision in decisions:
            job = self.jobs[decision.job]
            if decision.kind == "end":
                self._end(job, decision.reason, has_succeeded=False)
            elif decision.kind == "pause":
                self._stop(job)
            else:
                if not job.devices:
                    job.served_since_seconds = now
                    job.phase = "running"
                    job.keeps_until_seconds = decision.keeps_until_seconds
                    if math.isnan(job.first_started_at_seconds):
                        job.first_started_at_seconds = now
                job.devices = decision.devices
        self._check_leases()

    def note_who_wants(self) -> None:
        """Take note of the users who want devices now; see `FairShare.enter`."""
        users = {job.request.user for job in self.jobs.values() if self.is_ready(job)}
        self.fair_share.enter(users, self.clock_seconds)

    def is_ready(self, job: QueuedJob) -> bool:
        """Whether a job may have devices now, if there are some."""
        if job.is_held and (job.request.is_shrinkable or not job.devices):
            return False
        if job.not_before_seconds > self.clock_seconds:
            return False
        return not job.request.after or self.blocked_by(job) is None

    def blocked_by(self, job: QueuedJob) -> str | None:
        """The first job that must have succeeded before, and has not."""
        return next((name for name in job.request.after if not self._has_succeeded(name)), None)

    def _has_succeeded(self, name: str) -> bool:
        return name in self.ended and self.ended[name].has_succeeded

    def _check_leases(self) -> None:
        """Raise InvariantError if a device has two jobs: better to stop than to run both."""
        holders: dict[str, str] = {}
        for name, job in self.jobs.items():
            for device in job.devices:
                if holders.setdefault(device, name) != name:
                    raise InvariantError(
                        f"device {device} is leased to {holders[device]} and {name}"
                    )

    def job(self, name: str) -> QueuedJob:
        """A job that has not ended.

        Raises:
            UserError: There is none of that name.
        """
        if name not in self.jobs:
            if name in self.ended:
                raise UserError(f"job {name} has ended already: {self.ended[name].outcome}")
            raise UserError(
                f"job {name!r} is not in the queue; `hetero-hvd queue` lists those that are"
            )
        return self.jobs[name]

    def _submitted(self, event: JobSubmitted) -> None:
        request = event.request
        if request.job in self.jobs or request.job in self.ended:
            raise UserError(f"job {request.job!r} is in the queue already; choose another name")
        pools = {each.pool for each in self.devices.values()} | self.pools.keys()
        if request.pool not in pools:
            known = ", ".join(sorted(pools))
            raise UserError(f"no pool {request.pool!r}; there are {known}")
        for name in request.after:
            if name not in self.jobs and name not in self.ended:
                raise UserError(f"job {request.job!r}: it is to follow {name!r}, which is unknown")
            self._followers.setdefault(name, []).append(request.job)
        request = self._models.expected(request, self.clock_seconds)
        self.jobs[request.job] = QueuedJob(
            request=request,
            number=self._num_submitted,
            submitted_at_seconds=self.clock_seconds,
            waiting_since_seconds=self.clock_seconds,
        )
        self._num_submitted += 1
        if _named(request):
            self._table = None

    def _progressed(self, event: JobProgressed) -> None:
        job = self.job(event.job)
        job.done_work = max(job.done_work, event.done_work)

    def _model_told(self, event: ModelTold) -> None:
        job = self.job(event.job)
        before, size = _named(job.request), event.global_batch_size
        if event.model != job.request.model:
            job.request = self._models.told(job.request, event.model, self.clock_seconds)
            self._models.note(job.request, job.request, self.clock_seconds)
        if job.request.trial is not None and size not in (0, job.request.trial.global_batch_size):
            args = job.request, event.model, self.clock_seconds, size
            job.request = self._models.tried(*args)
        if _named(job.request) != before:
            self._table = None

    def _model_tried(self, event: ModelTried) -> None:
        self._models.note_trial(event.user, event.script, event.model, event.trial)

    def _measured(self, event: JobMeasured) -> None:
        job = self.job(event.job)
        before = job.request
        job.request = replace(
            job.request,
            work=event.work,
            rates=event.rates,
            bytes_per_unit=event.bytes_per_unit,
            hidden_ratio=event.hidden_ratio,
        )
        self._models.note(before, job.request, self.clock_seconds)

    def _links_measured(self, event: LinksMeasured) -> None:
        args = event.nodes, event.seconds_per_byte, event.num_bytes
        if self._links.note(*args, self.clock_seconds):
            self._table = None

    def _idled(self, event: JobIdled) -> None:
        self.job(event.job).idle_seconds = event.idle_seconds

    def _finished(self, event: JobFinished) -> None:
        self._end(self.job(event.job), "it is done", has_succeeded=True)

    def _failed(self, event: JobFailed) -> None:
        self._fail(self.job(event.job), event.cause)

    def _fail(self, job: QueuedJob, cause: FailureCause) -> None:
        wait = retry_after_seconds(cause, job.num_failures, job.request.retries)
        if wait is None:
            words = CAUSE_IN_WORDS.get(cause, cause.replace("_", " "))
            outcome = f"it failed: {words.format(job=job.request.job)}"
            self._end(job, outcome, has_succeeded=False)
            return
        self._stop(job)
        job.num_failures += 1
        job.lease_seconds = 0.0
        job.not_before_seconds = self.clock_seconds + wait
        job.waiting_since_seconds = job.not_before_seconds

    def _cancelled(self, event: JobCancelled) -> None:
        self._end(self.job(event.job), "it was cancelled", has_succeeded=False)

    def _held(self, event: JobHeld) -> None:
        self.job(event.job).is_held = True

    def _released(self, event: JobReleased) -> None:
        job = self.job(event.job)
        if job.is_held:
            job.is_held = False
            job.waiting_since_seconds = max(self.clock_seconds, job.not_before_seconds)

    def _moved(self, event: JobMoved) -> None:
        job = self.job(event.job)
        pool = event.pool or job.request.pool
        if pool != job.request.pool and job.devices and not job.request.is_shrinkable:
            raise UserError(f"job {event.job!r} cannot shrink, so it changes no pool while it runs")
        if pool not in {each.pool for each in self.devices.values()} | self.pools.keys():
            raise UserError(f"job {event.job!r}: no pool {pool!r}")
        priority = event.priority or job.request.priority
        job.request = replace(job.request, pool=pool, priority=priority)

    def _device_added(self, event: DeviceAdded) -> None:
        self.devices[event.device.device] = event.device
        self._table = None

    def _pools_changed(self, event: PoolsChanged) -> None:
        self.pools = {pool.pool: pool for pool in event.pools}
        self._table = None

    def _device_changed(self, event: DeviceChanged) -> None:
        if event.device not in self.devices:
            raise UserError(f"device {event.device!r} is not in the cluster")
        self.devices[event.device] = replace(self.devices[event.device], condition=event.condition)
        self._table = None
        if event.condition == "ready":
            return
        for job in [job for job in self.jobs.values() if event.device in job.devices]:
            if not job.request.is_shrinkable:
                lost: Mapping[str, FailureCause] = {
                    "lost": "node_lost", "failing": "device_failed", "guest_busy": "preempted",
                }  # fmt: skip
                self._fail(job, lost[event.condition])
            elif len(job.devices) <= job.request.min_devices:
                self._stop(job)
            else:
                job.devices = tuple(name for name in job.devices if name != event.device)

    def _stop(self, job: QueuedJob) -> None:
        """It has no devices any more, and waits for others."""
        job.phase = "waiting"
        job.devices = ()
        job.idle_seconds = 0.0
        job.keeps_until_seconds = -math.inf
        job.waiting_since_seconds = self.clock_seconds

    def _end(self, job: QueuedJob, outcome: str, *, has_succeeded: bool) -> None:
        name = job.request.job
        job.phase = "ended"
        job.devices = ()
        job.outcome = outcome
        job.has_succeeded = has_succeeded
        self.ended[name] = self.jobs.pop(name)
        self.table.forget(name)
        if _named(job.request):
            self._table = None
        for follower in self._followers.pop(name, ()):
            if follower in self.jobs:
                self.jobs[follower].waiting_since_seconds = self.clock_seconds


def _named(request: JobRequest) -> frozenset[str]:
    """Nodes of which something is said by name: what the job needs, or a trial of it."""
    needed = {str(need.value) for need in request.needs if need.what == "node"}
    return frozenset(needed | (request.trial.workers.keys() if request.trial else set()))
