"""One sentence about a job: what `hetero-hvd queue why JOB` says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hetero_hvd.core.queue.device_classes import ClassTable, JobShare
from hetero_hvd.core.queue.devices import DeviceCondition
from hetero_hvd.core.queue.jobs import QueuedJob
from hetero_hvd.core.queue.measured.trial_words import fastest, speed_here, what_is_left_out
from hetero_hvd.core.queue.queue_plan import in_words, remaining_seconds
from hetero_hvd.core.queue.queue_state import QueueState


def holders_of(state: QueueState) -> dict[str, QueuedJob]:
    """Device to the job that has it."""
    return {device: job for job in state.jobs.values() for device in job.devices}


def why(
    state: QueueState,
    name: str,
    now_seconds: float,
    holders: Mapping[str, QueuedJob] | None = None,
) -> str:
    """What a job does, or what it waits for and about how long.

    Args:
        state: Of the queue, after the newest plan.
        name: Of the job.
        now_seconds: On the queue's clock.
        holders: Who has which device, for who asks of many jobs; None: it is looked up.

    Raises:
        UserError: There is no such job.
    """
    if name in state.ended:
        return f"{name} has ended: {state.ended[name].outcome}"
    job = state.job(name)
    if job.devices:
        left = ending_in_seconds(state, job)
        until = f"; about {in_words(left)} left" if math.isfinite(left) else ""
        has = f"{_counted(len(job.devices))}: {', '.join(job.devices)}"
        held = holders_of(state) if holders is None else holders
        more = _left_out(state, job, held) + _tried(state, job, held)
        return f"{name} runs on {has}{until}{more}"
    if job.is_held:
        return f"{name} is held: `hetero-hvd queue release {name}` lets it start"
    blocking = state.blocked_by(job)
    if blocking is not None:
        return f"{name} waits until {blocking} has succeeded"
    if job.not_before_seconds > now_seconds:
        wait = in_words(job.not_before_seconds - now_seconds)
        failed = "once" if job.num_failures == 1 else f"{job.num_failures} times"
        return f"{name} failed {failed} and is tried again in about {wait}"
    held = holders_of(state) if holders is None else holders
    shortage = _shortage(state, job, held, now_seconds)
    return _joined(f"{name} waits: {shortage}", fastest(job.request), _unused(job))


def ending_in_seconds(state: QueueState, job: QueuedJob) -> float:
    """When a running job will have ended, at the predicted rate of its devices; inf: not known."""
    limit = job.request.time_limit_seconds - job.lease_seconds
    speeds = state.table.speeds_for(job.request)
    share = JobShare(job, state.table, 0.0, 0.0)
    rate = share.rate_of_counts(share.current, state.table.kinds)
    if math.isnan(job.remaining_work) or not rate:
        return limit
    return min(limit, remaining_seconds(job, speeds.best_rate, math.inf) / rate)


def _left_out(state: QueueState, job: QueuedJob, held: Mapping[str, QueuedJob]) -> str:
    """The nodes with idle devices that are of no use to it for their links alone."""
    table = state.table
    share = _share_of(job, table)
    if len(job.devices) >= job.request.most_devices or not any(share.speeds.links):
        return ""
    unlinked = _share_of(replace(job, request=replace(job.request, bytes_per_unit=0.0)), table)
    nodes = {
        each.node
        for index, group in enumerate(table.classes)
        if share.speeds.speeds[index] and share.speeds.links[index]
        if not _is_faster_with(share, index, group.kind)
        if _is_faster_with(unlinked, index, group.kind)
        for each in group.devices
        if each.device not in held
    }
    names = ", ".join(sorted(nodes))
    return f"; left out, as the link is too slow for it: {names}" if nodes else ""


def _tried(state: QueueState, job: QueuedJob, held: Mapping[str, QueuedJob]) -> str:
    """What a trial says of the devices that it has."""
    here = speed_here(job.request, job.devices, state.devices)
    left_out = what_is_left_out(job.request, job.devices, state.devices, held) if here else ""
    return _joined("", here, left_out, _unused(job))


def _unused(job: QueuedJob) -> str:
    words = job.request.trial_words
    return f"no trial counts: {words}" if words else ""


def _joined(*words: str) -> str:
    first, *more = words
    return first + "".join(f"; {each}" for each in more if each)


def _share_of(job: QueuedJob, table: ClassTable) -> JobShare:
    """What it has now."""
    share = JobShare(job, table, 0.0, 0.0)
    for index, number in enumerate(share.current):
        for _ in range(number):
            share.give(index, table.kinds[index])
    return share


def _is_faster_with(share: JobShare, index: int, kind: str) -> bool:
    return share.rate_with(index, kind) > share.rate


def _shortage(
    state: QueueState, job: QueuedJob, held: Mapping[str, QueuedJob], now_seconds: float
) -> str:
    """Which devices it lacks, and about how long."""
    request = job.request
    speeds = state.table.speeds_for(request)
    able = {
        each.device
        for index, group in enumerate(state.table.classes)
        if speeds.speeds[index] and speeds.is_own[index]
        for each in group.devices
    }
    if len(able) < request.min_devices:
        asked = f" that fulfil {', '.join(map(str, request.needs))}" if request.needs else ""
        return (
            f"{request.pool} has {_counted(len(able))}{asked}, and it needs "
            f"{request.min_devices}{_away(state)}"
        )
    num_free = len(able - held.keys())
    limit = state.pools[request.pool].max_devices_per_user if request.pool in state.pools else 0
    key = (request.pool, request.user)
    own = sum(
        (each.request.pool, each.request.user) == key and state.devices[device].pool == request.pool
        for device, each in held.items()
    )
    if limit and own + request.min_devices > limit:
        return f"{request.user} has {own} of at most {_counted(limit)} of {request.pool}"
    running = {each.request.job: each.request.array for each in held.values()}
    array = list(running.values()).count(request.array)
    if request.array_limit and array >= request.array_limit:
        return f"{array} elements of {request.array} run, as many as may at a time"
    ends = (ending_in_seconds(state, held[device]) for device in able & held.keys())
    limit_seconds = state.settings.wait_limit_seconds
    due = job.waiting_since_seconds + limit_seconds - now_seconds
    until = _until(min(ends, default=math.inf), due, limit_seconds)
    return f"{request.pool} has {num_free} of {_counted(len(able))} free{until}"


def _until(end_seconds: float, due_seconds: float, limit_seconds: float) -> str:
    """About when a device is free; where that is not known, when the job comes first, and why."""
    if end_seconds <= max(0.0, due_seconds):
        return f"; about {in_words(end_seconds)}" if math.isfinite(end_seconds) else ""
    waited = f"a job that has waited {in_words(limit_seconds)} comes before all others"
    if due_seconds <= 0:
        return f"; it comes first: {waited}"
    return f"; when one is free is not known; {waited}, this one in {in_words(due_seconds)}"


def _counted(number: int) -> str:
    return f"{number} device" if number == 1 else f"{number} devices"


AWAY: dict[DeviceCondition, str] = {
    "guest_busy": "used by its owner",
    "failing": "failing",
    "lost": "lost",
}


def _away(state: QueueState) -> str:
    """Why devices that there are can be had by nobody."""
    conditions = Counter(device.condition for device in state.devices.values())
    found = [
        f"{_counted(conditions[each])} is {words}"
        if conditions[each] == 1
        else f"{_counted(conditions[each])} are {words.replace('its owner', 'their owners')}"
        for each, words in AWAY.items()
        if conditions[each]
    ]
    return f" ({', '.join(found)})" if found else ""
