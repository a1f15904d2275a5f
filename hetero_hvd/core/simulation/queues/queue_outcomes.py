"""How a policy did in a replay, in few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hetero_hvd.core.simulation.queues.queue_replay import JobOutcome, QueueReplay

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class PolicyOutcome:
    """One policy on one trace, or the mean over several traces.

    Attributes:
        mean_hours: From submission to end, mean over the jobs.
        median_hours: The same, the median.
        p95_hours: The same, which 95 % of the jobs stay below.
        makespan_hours: From the first submission to the last end.
        mean_wait_hours: From submission to the first start.
        longest_wait_hours: The same, of the job that waited longest.
        resizes: Changes of running jobs' devices, and starts after the first, of all jobs.
        idle_device_hours: Of devices that no job had.
        joining_device_hours: Of devices that had been given to a job and did not work yet.
        paused_device_hours: Of devices whose job stood still at a change.
        fairness: Jain's index of the users' mean slow-downs: 1 where all are slowed down alike,
            1/n where one of n bears all. A slow-down is the time from submission to end over that
            alone on the fastest of as many devices as were asked for.
    """

    mean_hours: float
    median_hours: float
    p95_hours: float
    makespan_hours: float
    mean_wait_hours: float
    longest_wait_hours: float
    resizes: float
    idle_device_hours: float
    joining_device_hours: float
    paused_device_hours: float
    fairness: float


def outcome_of(replay: QueueReplay) -> PolicyOutcome:
    """The figures of a replay that has run; of at least one job."""
    jobs, totals = replay.outcomes, replay.totals
    completion = np.array([job.completion_seconds for job in jobs]) / HOUR_SECONDS
    wait = np.array([job.wait_seconds for job in jobs]) / HOUR_SECONDS
    return PolicyOutcome(
        mean_hours=float(completion.mean()),
        median_hours=float(np.median(completion)),
        p95_hours=float(np.percentile(completion, 95)),
        makespan_hours=totals.span_seconds / HOUR_SECONDS,
        mean_wait_hours=float(wait.mean()),
        longest_wait_hours=float(wait.max()),
        resizes=float(totals.num_resizes),
        idle_device_hours=totals.idle_seconds / HOUR_SECONDS,
        joining_device_hours=totals.joining_seconds / HOUR_SECONDS,
        paused_device_hours=totals.paused_seconds / HOUR_SECONDS,
        fairness=jain_index(jobs),
    )


def mean_outcome(outcomes: Sequence[PolicyOutcome]) -> PolicyOutcome:
    """Each figure's mean over several traces."""
    return PolicyOutcome(
        **{
            each.name: float(np.mean([getattr(outcome, each.name) for outcome in outcomes]))
            for each in fields(PolicyOutcome)
        }
    )


def jain_index(jobs: Sequence[JobOutcome]) -> float:
    """Jain's index of the users' mean slow-downs (Jain, Chiu, Hawe 1984)."""
    slow_downs: dict[str, list[float]] = {}
    for job in jobs:
        ratio = job.completion_seconds / job.alone_seconds
        slow_downs.setdefault(job.user, []).append(ratio)
    means = np.array([float(np.mean(ratios)) for ratios in slow_downs.values()])
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))
