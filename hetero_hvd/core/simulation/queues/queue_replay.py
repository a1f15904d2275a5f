"""Replays a trace under a policy: from event to event, without a clock of its own.

What a change costs is charged: a device that joins a job does nothing for `start_seconds` (imports,
data), while the others go on; at each change all devices of the job stand still for the policy's
`pause_seconds`. Policies that restart a job to resize it have a long pause, ours a short one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.simulation.queues.trace_job import TraceJob
from hetero_hvd.errors import InvariantError

NEARLY_DONE = 1e-9
"""Part of the work that rounding may leave."""


@dataclass(slots=True)
class ReplayedJob:
    """A job under way.

    Attributes:
        trace: What it is.
        done_work: Of it.
        devices: Those that it has.
        ready_at_seconds: Device to when it has joined.
        paused_until_seconds: It stands still until then.
        rate: Units of work per second at the moment.
        started_at_seconds: NaN: it has not.
        num_changes: So often its devices changed, the first start not counted.
        placed_at_seconds: Since when it has these devices.
    """

    trace: TraceJob
    done_work: float = 0.0
    devices: tuple[str, ...] = ()
    ready_at_seconds: dict[str, float] = field(default_factory=dict)
    paused_until_seconds: float = 0.0
    rate: float = 0.0
    started_at_seconds: float = math.nan
    num_changes: int = 0
    placed_at_seconds: float = 0.0

    @property
    def remaining_work(self) -> float:
        """What is left."""
        return self.trace.request.work - self.done_work


class ReplayPolicy(Protocol):
    """Decides in a replay.

    Attributes:
        is_balanced: Whether shares follow speeds.
        pause_seconds: For so long a job stands still when its devices change.
        round_seconds: It is asked so often, besides at each submission and end.
    """

    is_balanced: bool
    pause_seconds: float
    round_seconds: float

    def submitted(self, job: ReplayedJob, now_seconds: float) -> None:
        """A job has come."""

    def finished(self, job: ReplayedJob, now_seconds: float) -> None:
        """A job is done."""

    def place(
        self, jobs: Mapping[str, ReplayedJob], now_seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """Job to all devices that it has from now on; a job that is not in it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """How a job fared; times since the trace began."""

    job: str
    user: str
    submitted_at_seconds: float
    started_at_seconds: float
    ended_at_seconds: float
    alone_seconds: float

    @property
    def completion_seconds(self) -> float:
        """From its submission to its end."""
        return self.ended_at_seconds - self.submitted_at_seconds

    @property
    def wait_seconds(self) -> float:
        """From its submission to its first start."""
        return self.started_at_seconds - self.submitted_at_seconds


@dataclass(kw_only=True, slots=True)
class ReplayTotals:
    """What the devices did, in device-seconds but for the number of changes.

    Attributes:
        num_resizes: Changes of a running job's devices, and starts after the first.
        idle_seconds: Nobody had them.
        joining_seconds: They started, and did not work yet.
        paused_seconds: They stood still at a change.
        span_seconds: From the first submission to the last end; not device-seconds.
    """

    num_resizes: int = 0
    idle_seconds: float = 0.0
    joining_seconds: float = 0.0
    paused_seconds: float = 0.0
    span_seconds: float = 0.0


class QueueReplay:
    """One trace under one policy.

    Args:
        trace: Jobs in the order of their submission.
        devices: Of the cluster.
        policy: What decides.
        start_seconds: What a device that joins needs until it works.
    """

    def __init__(
        self,
        trace: Sequence[TraceJob],
        devices: Sequence[QueueDevice],
        policy: ReplayPolicy,
        *,
        start_seconds: float,
    ) -> None:
        self.outcomes: list[JobOutcome] = []
        self.totals = ReplayTotals()
        self._trace = trace
        self._devices = {each.device: each for each in devices}
        self._policy = policy
        self._start_seconds = start_seconds
        self._now = trace[0].submit_seconds if trace else 0.0
        self._jobs: dict[str, ReplayedJob] = {}
        self._running: dict[str, ReplayedJob] = {}

    def run(self) -> list[JobOutcome]:
        """Replay it all.

        Raises:
            InvariantError: The policy gave a device to two jobs, or leaves jobs waiting for ever.
        """
        policy, coming, begin = self._policy, 0, self._now
        next_round = self._now + policy.round_seconds
        while coming < len(self._trace) or self._jobs:
            arrival = self._trace[coming].submit_seconds if coming < len(self._trace) else math.inf
            change = min(
                (self._next_change(job) for job in self._running.values()), default=math.inf
            )
            at = min(arrival, change, next_round if self._jobs else math.inf)
            if at == math.inf:
                raise InvariantError(f"{len(self._jobs)} jobs wait, and nothing happens any more")
            self._advance(at)
            must_place = at >= next_round
            next_round = at + policy.round_seconds if must_place or not self._jobs else next_round
            for job in [each for each in self._running.values() if self._is_done(each)]:
                self._finish(job)
                must_place = True
            while coming < len(self._trace) and self._trace[coming].submit_seconds <= at:
                job = ReplayedJob(self._trace[coming])
                self._jobs[job.trace.request.job] = job
                policy.submitted(job, at)
                coming += 1
                must_place = True
            if must_place:
                self._place()
        self.totals.span_seconds = self._now - begin
        return self.outcomes

    def _next_change(self, job: ReplayedJob) -> float:
        """When its rate changes by itself, or it is done."""
        if job.paused_until_seconds > self._now:
            return job.paused_until_seconds
        at = min((at for at in job.ready_at_seconds.values() if at > self._now), default=math.inf)
        return min(at, self._now + job.remaining_work / job.rate) if job.rate else at

    def _is_done(self, job: ReplayedJob) -> bool:
        return job.remaining_work <= job.trace.request.work * NEARLY_DONE

    def _advance(self, at: float) -> None:
        seconds = at - self._now
        held = 0
        for job in self._running.values():
            held += len(job.devices)
            if self._now < job.paused_until_seconds:
                self.totals.paused_seconds += seconds * len(job.devices)
            else:
                job.done_work += job.rate * seconds
                num_joining = sum(ready > self._now for ready in job.ready_at_seconds.values())
                self.totals.joining_seconds += seconds * num_joining
        self.totals.idle_seconds += seconds * (len(self._devices) - held)
        self._now = at
        for job in self._running.values():
            if job.ready_at_seconds or job.paused_until_seconds:
                self._set_rate(job)

    def _set_rate(self, job: ReplayedJob) -> None:
        """Count the devices that have joined by now."""
        if job.paused_until_seconds > self._now:
            job.rate = 0.0
            return
        job.paused_until_seconds = 0.0
        late = {name: at for name, at in job.ready_at_seconds.items() if at > self._now}
        working = [self._devices[name] for name in job.devices if name not in late]
        job.ready_at_seconds = late
        job.rate = job.trace.rate_of(working, is_balanced=self._policy.is_balanced)

    def _finish(self, job: ReplayedJob) -> None:
        request = job.trace.request
        del self._jobs[request.job], self._running[request.job]
        able = [each for each in self._devices.values() if job.trace.may_use(each)]
        fastest = sorted(able, key=job.trace.rate_on)[-job.trace.num_devices :]
        self.outcomes.append(
            JobOutcome(
                job=request.job,
                user=request.user,
                submitted_at_seconds=job.trace.submit_seconds,
                started_at_seconds=job.started_at_seconds,
                ended_at_seconds=self._now,
                alone_seconds=request.work / job.trace.rate_of(fastest, is_balanced=True),
            )
        )
        self._policy.finished(job, self._now)

    def _place(self) -> None:
        placed = self._policy.place(self._jobs, self._now)
        taken = [device for devices in placed.values() for device in devices]
        if len(taken) != len(set(taken)):
            raise InvariantError("the policy gave one device to two jobs")
        for name in [*self._running.keys() - placed.keys(), *placed]:
            job, devices = self._jobs[name], placed.get(name, ())
            if set(devices) != set(job.devices):
                self._change(job, tuple(devices))

    def _change(self, job: ReplayedJob, devices: tuple[str, ...]) -> None:
        is_first = math.isnan(job.started_at_seconds)
        if is_first:
            job.started_at_seconds = self._now
        else:
            self.totals.num_resizes += 1
            job.num_changes += 1
        had = set(job.devices)
        working_before = bool(had)
        for name in devices:
            if name not in had:
                job.ready_at_seconds[name] = self._now + self._start_seconds
        job.ready_at_seconds = {
            name: at for name, at in job.ready_at_seconds.items() if name in devices
        }
        job.devices = devices
        job.placed_at_seconds = self._now
        if working_before and devices:
            job.paused_until_seconds = self._now + self._policy.pause_seconds
        if devices:
            self._running[job.trace.request.job] = job
        else:
            self._running.pop(job.trace.request.job, None)
            job.paused_until_seconds = 0.0
        self._set_rate(job)
