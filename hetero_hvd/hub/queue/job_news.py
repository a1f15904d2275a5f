"""What a job's own measurements say to the policy: of itself, of its devices and of their links."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetero_hvd.core.queue.jobs import QueuedJob
from hetero_hvd.core.queue.queue_events import (
    JobMeasured,
    JobProgressed,
    LinksMeasured,
    QueueEvent,
)
from hetero_hvd.core.queue.set_rate import RING
from hetero_hvd.core.view.queued.job_progress import ProgressFacts
from hetero_hvd.core.view.queued.reduction_meter import ReductionFacts
from hetero_hvd.hub.queue.queue_cluster import QueueCluster

NOISE_RATIO = 0.1
"""A figure that differs by less from what is known is not worth a new plan."""

HIDDEN_RATIO = 0.1
"""Of a reduction of which no more is exposed, more might be hidden as well."""


def news_of(job: QueuedJob, facts: ProgressFacts, cluster: QueueCluster) -> Iterator[QueueEvent]:
    """What follows from what the driver of a training has told.

    Args:
        job: As it is known.
        facts: What was told; the training has begun.
        cluster: Which devices the job's nodes are.
    """
    request, name = job.request, job.request.job
    rates = dict(request.rates)
    for kind, rate in cluster.by_kind(facts.rates).items():
        if abs(rates.get(kind, 0.0) / rate - 1.0) > NOISE_RATIO:
            rates[kind] = rate
    left = facts.samples_left
    work = math.nan if left is None else facts.samples_done + left
    yield JobProgressed(name, facts.samples_done)
    reduced = request.bytes_per_unit, request.hidden_ratio
    told = facts.reductions
    if told is not None and (nodes := cluster.nodes_of(told.nodes, job.devices)):
        reduced = _reduced(job, told)
        cost = told.seconds / told.num_bytes / max(1.0, RING[len(told.nodes)])
        yield LinksMeasured(nodes, cost, told.num_bytes)
    known = str((request.work, request.bytes_per_unit, request.hidden_ratio))
    if rates != request.rates or known != str((work, *reduced)):  # NaN is unlike itself
        yield JobMeasured(name, work, rates, *reduced)


def _reduced(job: QueuedJob, told: ReductionFacts) -> tuple[float, float]:
    """Bytes for a unit of work, and the part of its computation that has reductions beside it."""
    num_bytes, hidden = job.request.bytes_per_unit, job.request.hidden_ratio
    new = told.num_bytes / told.num_samples
    if abs(num_bytes / new - 1.0) > NOISE_RATIO:
        num_bytes = new
    beside = min(1.0, (told.seconds - told.exposed_seconds) / told.busy_seconds)
    if told.exposed_seconds < HIDDEN_RATIO * told.seconds:
        beside = max(hidden, beside)
    return num_bytes, beside if abs(beside - hidden) > NOISE_RATIO else hidden
