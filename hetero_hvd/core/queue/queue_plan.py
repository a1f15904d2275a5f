"""The policy: from the state and the time to what is done now.

The order of rights, highest first: what cannot shrink keeps what it has; whoever has waited too
long gets its fewest devices, and keeps them for a while, so that waiting is bounded; then higher
priorities; within one, by `DeviceAllocation`: shortest remaining work, weighed by what users have
had; then what a pool's own jobs leave idle is lent to others, and to its users above their limits,
who give back whatever a job within its user's limit can use. Everything that can shrink is
distributed anew at each event, so a device that is lent, or more than a job's fewest, is back at
the next.

A reservation is that of EASY backfilling (Lifka 1995), for each job that is due: what never shrinks
and would end after the shadow time is not started on devices that are reserved. What can shrink may
use them until then, as it is taken away at once.

The plan is a function of its arguments: equal states and times give equal plans. It costs about
(jobs + devices x classes) log jobs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hetero_hvd.core.queue.allocation.device_allocation import DeviceAllocation
from hetero_hvd.core.queue.device_classes import ClassSpeeds, JobShare
from hetero_hvd.core.queue.jobs import PRIORITIES, QueuedJob
from hetero_hvd.core.queue.measured.trial_words import speed_here
from hetero_hvd.core.queue.queue_events import DecisionKind, QueueDecision
from hetero_hvd.core.queue.queue_state import QueueState

DEADLINE_MARGIN = 1.5
"""A deadline presses when this many times the remaining time on the fastest device is left."""

DEADLINE_BOOST = 10.0
"""So many times a job weighs more then: within its priority and what its user has had, so that
nobody gets ahead by inventing deadlines. One that has passed counts no more."""

LEAST_SECONDS = 1.0
"""Work that is nearly done counts as so much, on the fastest device."""


def decide(state: QueueState, now_seconds: float) -> list[QueueDecision]:
    """Plan, and take note of it.

    Returns:
        What is to be done, in this order: what frees devices comes before what needs them.
    """
    state.advance(now_seconds)
    ended = _ends(state)
    state.apply(ended)
    state.note_who_wants()
    decisions = plan(state, now_seconds)
    state.apply(decisions)
    return ended + decisions


def _ends(state: QueueState) -> list[QueueDecision]:
    """The jobs whose time is up, and those that can never start."""
    found = []
    for name, job in state.jobs.items():
        request = job.request
        reason = ""
        if job.devices and job.lease_seconds >= request.time_limit_seconds:
            reason = f"its time limit of {in_words(request.time_limit_seconds)} is over"
        elif job.devices and job.idle_seconds >= request.idle_limit_seconds:
            reason = f"its devices did nothing for {in_words(job.idle_seconds)}"
        elif request.after:
            failed = [
                name
                for name in request.after
                if name in state.ended and not state.ended[name].has_succeeded
            ]
            if failed:
                reason = f"it was to follow {failed[0]}, which did not succeed"
        if reason:
            found.append(QueueDecision(kind="end", job=name, reason=reason))
    return found


def plan(state: QueueState, now_seconds: float) -> list[QueueDecision]:
    """What is to be started, grown, shrunk and paused now. Nothing is changed.

    Args:
        state: What is known.
        now_seconds: At least the state's time.
    """
    rights = _Rights(state, now_seconds)
    allocation = DeviceAllocation(
        state.table,
        state.settings,
        {name: pool.max_devices_per_user for name, pool in state.pools.items()},
    )
    for share in rights.fixed:
        allocation.keep(share)
    shadow, keeps_until = _serve_first(state, allocation, rights, now_seconds)

    def ends_in_time(share: JobShare) -> bool:
        request = share.job.request
        return request.is_shrinkable or now_seconds + request.time_limit_seconds <= shadow

    def distribute(*rounds: bool) -> None:
        for is_lent, priority in itertools.product(rounds, PRIORITIES):
            if any(allocation.free):
                shares = rights.in_order(priority)
                allocation.distribute(shares, is_lent=is_lent, may_claim=ends_in_time)

    distribute(False, True)
    waiting = itertools.chain(rights.first, *map(rights.in_order, PRIORITIES))
    if allocation.take_back(waiting, keeps_until):
        distribute(True)
    if allocation.stay():
        distribute(False, True)
    allocation.exchange()
    return _changes(state, rights.shares, keeps_until)


class _Rights:
    """The jobs that may have devices now, in the order of their rights.

    Attributes:
        fixed: Running jobs that cannot shrink.
        first: Those that keep their fewest for a while, and those that have waited too long.
        shares: Name to what each job is given, of those that were looked at.
    """

    def __init__(self, state: QueueState, now_seconds: float) -> None:
        self._table = state.table
        self.shares: dict[str, JobShare] = {}
        settings = state.settings
        ready = [job for job in state.jobs.values() if state.is_ready(job)]
        users = {job.request.user for job in ready}
        tolerance = settings.tolerance_seconds * max(self._table.total_speed, 1e-9)
        weights = state.fair_share.weights(users, now_seconds, tolerance)
        self._queues: dict[str, list[tuple[float, int, float, QueuedJob]]] = {
            priority: [] for priority in PRIORITIES
        }
        self.fixed: list[JobShare] = []
        due: list[tuple[float, int, JobShare]] = []
        kept: list[tuple[float, int, JobShare]] = []
        for job in ready:
            request = job.request
            best = self._table.speeds_for(request).best_rate
            remaining = remaining_seconds(job, best, settings.unknown_remaining_seconds)
            urgency = weights[request.user] / remaining**settings.remaining_exponent
            if _is_pressed(job, remaining, now_seconds):
                urgency *= DEADLINE_BOOST
            waited = now_seconds - job.waiting_since_seconds
            entry = (-urgency, job.number, remaining, job)
            if job.devices and not request.is_shrinkable:
                self.fixed.append(self._share(entry))
            elif job.devices and job.keeps_until_seconds > now_seconds:
                kept.append((job.waiting_since_seconds, job.number, self._share(entry)))
            elif not job.devices and waited >= settings.wait_limit_seconds:
                due.append((job.waiting_since_seconds, job.number, self._share(entry)))
            self._queues[request.priority].append(entry)
        self.first = [share for _, _, share in sorted(kept) + sorted(due)]
        for entries in self._queues.values():
            entries.sort()

    def in_order(self, priority: str) -> Iterator[JobShare]:
        """The jobs of a priority, the most urgent first."""
        return map(self._share, self._queues[priority])

    def _share(self, entry: tuple[float, int, float, QueuedJob]) -> JobShare:
        urgency, _, remaining, job = entry
        name = job.request.job
        if name not in self.shares:
            self.shares[name] = JobShare(job, self._table, -urgency, remaining)
        return self.shares[name]


def _serve_first(
    state: QueueState, allocation: DeviceAllocation, rights: _Rights, now_seconds: float
) -> tuple[float, dict[str, float]]:
    """Give their fewest to those who keep them, and to those who have waited too long.

    Returns:
        The shadow time; name of a job to until when it keeps its fewest.
    """
    shadow = math.inf
    keeps_until: dict[str, float] = {}
    for share in rights.first:
        if allocation.grant_fewest(share):
            until = share.job.keeps_until_seconds
            is_new = not share.job.devices
            keeps_until[share.job.request.job] = (
                now_seconds + state.settings.quantum_seconds if is_new else until
            )
        else:
            missing = allocation.claim(share)
            if missing:
                shadow = min(shadow, _leases_end_at(state, share.speeds, missing))
    return shadow, keeps_until


def _is_pressed(job: QueuedJob, remaining_seconds: float, now_seconds: float) -> bool:
    """Whether a deadline can be met, but not for much longer."""
    left = job.request.deadline_seconds - now_seconds
    return 0 < left <= DEADLINE_MARGIN * remaining_seconds


def _leases_end_at(state: QueueState, speeds: ClassSpeeds, num_missing: int) -> float:
    """When so many more of the devices that a job may use are free of what never shrinks.

    Args:
        state: For who holds what.
        speeds: Which classes the job may use.
        num_missing: >= 1.

    Returns:
        On the queue's clock; inf: there are not as many.
    """
    ends = sorted(
        state.clock_seconds + job.request.time_limit_seconds - job.lease_seconds
        for job in state.jobs.values()
        if not job.request.is_shrinkable
        for device in job.devices
        if speeds.is_own[state.table.class_of[device]]
        and speeds.speeds[state.table.class_of[device]]
    )
    return ends[num_missing - 1] if num_missing <= len(ends) else math.inf


def remaining_seconds(job: QueuedJob, best_rate: float, unknown_seconds: float) -> float:
    """Until it would be done, alone on the fastest device that it may use."""
    known = job.remaining_work / best_rate if best_rate else math.nan
    if math.isnan(known):
        known = max(unknown_seconds, job.attained_seconds)
    left = job.request.time_limit_seconds - job.lease_seconds
    return max(LEAST_SECONDS, min(known, left))


def _changes(
    state: QueueState, shares: dict[str, JobShare], keeps_until: dict[str, float]
) -> list[QueueDecision]:
    """From numbers of devices to their names, and to what differs from now."""
    free = [{each.device: each.node for each in group.devices} for group in state.table.classes]
    chosen: dict[str, list[str]] = {}
    for name, job in state.jobs.items():
        if job.devices:
            given = list(shares[name].given) if name in shares else [0] * len(free)
            chosen[name] = []
            for device in job.devices:
                index = state.table.class_of[device]
                if given[index]:
                    given[index] -= 1
                    del free[index][device]
                    chosen[name].append(device)
    for name, share in shares.items():
        if share.count > len(chosen.get(name, ())):
            devices = chosen.setdefault(name, [])
            _add_nearest(state, share, devices, free)
    taken = {device: name for name, devices in chosen.items() for device in devices}
    found = []
    for name, devices in chosen.items():
        job = state.jobs[name]
        if set(devices) != set(job.devices):
            found.append(_decision(state, job, sorted(devices), taken, keeps_until))
    return sorted(found, key=lambda each: (_ORDER[each.kind], state.jobs[each.job].number))


_ORDER: dict[DecisionKind, int] = {
    "end": 0, "pause": 1, "shrink": 2, "move": 3, "grow": 4, "start": 5,
}  # fmt: skip


def _add_nearest(
    state: QueueState, share: JobShare, devices: list[str], free: list[dict[str, str]]
) -> None:
    """Choose devices, on nodes where the job is already if there are some."""
    nodes = {state.devices[device].node for device in devices}
    for index, number in enumerate(share.given):
        have = sum(state.table.class_of[device] == index for device in devices)
        for _ in range(number - have):
            near = (device for device, node in free[index].items() if node in nodes)
            device = next(near, None) or next(iter(free[index]))
            nodes.add(free[index].pop(device))
            devices.append(device)


def _decision(
    state: QueueState,
    job: QueuedJob,
    devices: list[str],
    taken: dict[str, str],
    keeps_until: dict[str, float],
) -> QueueDecision:
    name = job.request.job
    before, after = len(job.devices), len(devices)
    lost = sorted({taken[device] for device in job.devices if taken.get(device, name) != name})
    to_whom = f"{', '.join(lost)} {'has' if len(lost) == 1 else 'have'} the better right now"
    kind: DecisionKind
    if not after:
        kind, reason = "pause", to_whom if lost else "it is held, or no device is left for it"
    elif not before:
        kind, reason = "start", f"{after} of the devices that it may use are free for it"
    elif after < before:
        kind, reason = "shrink", to_whom if lost else "fewer devices are faster, or one has left"
    elif after > before:
        kind, reason = "grow", f"{after - before} more would be idle, or serve others less"
    else:
        kind, reason = "move", "other devices are faster for it by more than the move costs"
    tried = speed_here(job.request, devices, state.devices)
    return QueueDecision(
        kind=kind,
        job=name,
        devices=tuple(devices),
        reason=f"{reason}; {tried}" if tried else reason,
        keeps_until_seconds=keeps_until.get(name, job.keeps_until_seconds),
    )


MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def in_words(seconds: float) -> str:
    """A time for people, in one unit."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
