"""The queue for Prometheus: who waits, who has what, how jobs end."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from hetero_hvd.core.queue.jobs import QueuedJob
from hetero_hvd.core.queue.queue_events import QueueDecision
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.view.metric_names import PREFIX, QUEUE
from hetero_hvd.run.web.scraping.exposition import Exposition, exposition

WAIT_BUCKETS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400)
"""Seconds."""

JOB_STATES = ("waiting", "held", "blocked", "running")
DEVICE_STATES = ("busy", "free", "guest_busy", "failing", "lost")


class QueueMetrics:
    """Folds what is decided. Counters begin with the hub; use and ends before it are not counted.

    Args:
        now: The queue's clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._now = now
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for entry in QUEUE:
            name, labels, of = PREFIX + entry.name, entry.labels, self._registry
            if entry.kind == "gauge":
                self._gauges[entry.name] = Gauge(name, entry.doc, labels, registry=of)
            elif entry.kind == "counter":
                self._counters[entry.name] = Counter(name, entry.doc, labels, registry=of)
            else:
                self._waits = Histogram(name, entry.doc, labels, registry=of, buckets=WAIT_BUCKETS)
        self._attained: dict[str, float] | None = None
        self._open: set[str] = set()

    def take(self, state: QueueState, decisions: Iterable[QueueDecision] = ()) -> None:
        """What was decided has been kept.

        Args:
            state: After that.
            decisions: New ones.
        """
        for each in decisions:
            if each.kind == "start":
                job = state.jobs[each.job]
                waited = max(0.0, state.clock_seconds - job.waiting_since_seconds)
                self._waits.labels(job.request.pool).observe(waited)
        jobs = state.jobs | state.ended
        before = self._attained
        self._attained = {name: job.attained_seconds for name, job in jobs.items()}
        before = self._attained if before is None else before
        for name, job in jobs.items():
            used = job.attained_seconds - before.get(name, 0.0)
            if used > 0:
                labels = job.request.pool, job.request.user
                self._counters["queue_device_seconds"].labels(*labels).inc(used)
            if name in state.ended and name in self._open:
                self._counters["queue_jobs_ended"].labels(job.request.pool, _ending(job)).inc()
        self._open = set(state.jobs)

    def render(self, state: QueueState, accept: str = "") -> Exposition:
        """The page for a scraper, by its Accept header."""
        pools = {each.pool for each in state.devices.values()} | state.pools.keys()
        jobs: Counts[tuple[str, str]] = Counts()
        longest = dict.fromkeys(pools, 0.0)
        for job in state.jobs.values():
            pool, standing = job.request.pool, _standing(state, job)
            jobs[pool, standing] += 1
            if standing == "waiting":
                waited = self._now() - job.waiting_since_seconds
                longest[pool] = max(longest.get(pool, 0.0), waited)
        held = {device for job in state.jobs.values() for device in job.devices}
        devices = Counts(
            (each.pool, _use(each.condition, is_busy=each.device in held))
            for each in state.devices.values()
        )
        for pool in pools:
            for standing in JOB_STATES:
                self._gauges["queue_jobs"].labels(pool, standing).set(jobs[pool, standing])
            for use in DEVICE_STATES:
                self._gauges["queue_devices"].labels(pool, use).set(devices[pool, use])
            self._gauges["queue_longest_wait_seconds"].labels(pool).set(longest[pool])
        return exposition(self._registry, accept)


def _standing(state: QueueState, job: QueuedJob) -> str:
    if job.devices:
        return "running"
    if job.is_held:
        return "held"
    return "waiting" if state.is_ready(job) else "blocked"


def _use(condition: str, *, is_busy: bool) -> str:
    if is_busy:
        return "busy"
    return "free" if condition == "ready" else condition


def _ending(job: QueuedJob) -> str:
    if job.has_succeeded:
        return "succeeded"
    return "cancelled" if "cancelled" in job.outcome else "failed"
