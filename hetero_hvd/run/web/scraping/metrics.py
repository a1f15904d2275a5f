"""The driver's exporter: a run's events as Prometheus metrics. What is unknown is absent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from hetero_hvd.core.balance.hysteresis import Action
from hetero_hvd.core.bandwidth import bus_factor
from hetero_hvd.core.guard.limits import REASONS
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.metric_names import PREFIX, RUN, WORKER
from hetero_hvd.core.view.quality import Quality
from hetero_hvd.messages import (
    CAUSES,
    STEP_PARTS,
    CheckpointFailed,
    CheckpointWritten,
    CollectivesTimed,
    Crashed,
    Decided,
    Evaluated,
    GuardReported,
    Logged,
    OutOfMemory,
    Recovered,
    RunEnded,
    RunStarted,
    SetAsideReported,
    SourcesRead,
    StallReported,
    StragglerReported,
    WorkerId,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.probes.machine.node_metrics import NodeCollector
from hetero_hvd.probes.sampling.local_samples import MAX_AGE_SECONDS, NewestSamples
from hetero_hvd.run.web.scraping.exposition import Exposition, exposition
from hetero_hvd.run.web.scraping.targets import run_name

BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends in seconds; with +Inf the 13 that 10,000 ranks can bear."""

FINE_BUCKETS = tuple(
    round(mantissa * 10.0**power, 6)
    for power in (-3, -2, -1, 0, 1)
    for mantissa in (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
)
"""Preferred numbers (ISO 3, R10) for a family that has one series: a quantile is right within 28 %,
mostly much less. Prometheus' native histograms need its binary form, which the client does not
write."""

FINE = ("step_duration_seconds",)

PHASE_FIELDS = {part.name: part.column for part in STEP_PARTS}
PHASE_FIELDS["h2d"] = PHASE_FIELDS["transfer"]
"""Label of a phase to its column; `h2d` is the old label of `transfer`, for one more release."""

STEP_BUCKETS = tuple(map(float, range(9)))
"""The staleness bound is 8 at most."""

MAX_EXEMPLAR_CHARACTERS = 128
"""Of names and values together: OpenMetrics has no longer ones."""

RESETS = ("fault", "membership")
STATES = ("starting", "training", "stalled", "ended")
OUT_OF_MEMORY = ("torch.OutOfMemoryError", "MemoryError")


class Metrics:
    """Folds a run's events; `observe` is an observer of the bus.

    Has a registry of its own, so that several can live in one process. Cost of an event:
    O(workers), of a rendering: O(series).

    Args:
        run_id: See `RunStarted`; a label of every series.
        max_age_seconds: Of a node's newest sample; an older one is left out.
    """

    def __init__(self, run_id: str, *, max_age_seconds: float = MAX_AGE_SECONDS) -> None:
        # It makes a series more for each counter, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._run_id = run_id
        self._nodes = NewestSamples(max_age_seconds)
        self._registry.register(NodeCollector(self._nodes, {"run_id": run_id}))
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for entry in (*RUN, *WORKER):
            name, labels, of = PREFIX + entry.name, ("run_id", *entry.labels), self._registry
            if entry.kind == "gauge":
                self._gauges[entry.name] = Gauge(name, entry.doc, labels, registry=of)
            elif entry.kind == "counter":
                self._counters[entry.name] = Counter(name, entry.doc, labels, registry=of)
            else:
                buckets = STEP_BUCKETS if name.endswith("_steps") else BUCKETS
                buckets = FINE_BUCKETS if entry.name in FINE else buckets
                histogram = Histogram(name, entry.doc, labels, registry=of, buckets=buckets)
                self._histograms[entry.name] = histogram
        self._members: tuple[WorkerId, ...] = ()
        self._counted_reset = 0
        self._slow: dict[WorkerId, str] = {}
        self._aside: set[WorkerId] = set()
        self._quality = Quality()
        self._num_rates = 0

    def render(self, accept: str = "") -> Exposition:
        """The page for a scraper, by its header."""
        return exposition(self._registry, accept)

    def observe(self, at_unix_seconds: float, event: Observed) -> None:  # noqa: C901, PLR0912 - a case a kind
        """Take in an event.

        Args:
            at_unix_seconds: When it happened, seconds since 1970.
            event: What happened.
        """
        self._nodes.take(event)
        self._show_quality(at_unix_seconds, event)
        match event:
            case RunStarted():
                self._begin(at_unix_seconds, event)
            case WorkerStarted():
                self._add("restarts", float(event.num_restarts > 0))
                self._count_aside(event)
                self._mark_slow(event.worker, None)
            case WorkerQuarantined() | SetAsideReported():
                self._count_aside(event)
            case RunEnded():
                self._set("run_active", 0.0)
                self._set("run_exit_code", event.exit_code)
                self._set_state("ended")
            case StallReported():
                self._set_state("stalled" if event.is_stalled else "training")
            case WorkersJoined():
                self._set_state("training")
                self._joined(event)
            case StepTable():
                self._timed(at_unix_seconds, event)
            case CollectivesTimed():
                self._operations(event)
            case SourcesRead():
                self._read(event)
            case Recovered() if event.rendezvous_id > self._counted_reset:
                self._counted_reset = event.rendezvous_id
                self._add("resets", 1.0, reason=event.cause)
            case Decided():
                self._add("balancer_decisions", 1.0, action=event.action.replace(" ", "_"))
                if event.current_seconds > 0:
                    gain = 1.0 - event.proposed_seconds / event.current_seconds
                    self._set("planned_gain_ratio", gain)
            case StragglerReported():
                self._mark_slow(event.worker, (event.cause or "unknown") if event.is_slow else None)
            case GuardReported():
                self._guarded(event)
            case OutOfMemory() | Crashed() if _is_out_of_memory(event):
                self._add("oom", 1.0)
            case CheckpointFailed():
                self._add("checkpoint_failures", 1.0)

    def _begin(self, at_unix_seconds: float, event: RunStarted) -> None:
        self._set("run_start_timestamp_seconds", at_unix_seconds)
        self._set("run_info", 1.0, run=run_name(event.run_id))
        self._set("run_active", 1.0)
        self._set_state("starting")
        self._slow.clear()
        self._count_slow()
        self._add("restarts", 0.0)
        self._add("checkpoint_failures", 0.0)
        self._set("set_aside_workers", 0.0)
        self._set("guard_drained_devices", 0.0)
        self._set("guard_refused_devices", 0.0)

    def _read(self, event: SourcesRead) -> None:
        for source, read in event.sources.items():
            self._add("data_source_wait_seconds", read.wait_seconds, source=source)
            self._add("data_source_bytes", read.num_bytes, source=source)

    def _guarded(self, event: GuardReported) -> None:
        self._set("guard_drained_devices", event.num_drained)
        self._set("guard_refused_devices", event.num_refused)
        if event.is_new:
            self._add("guard_episodes", 1.0, reason=event.reason)

    def _show_quality(self, at_unix_seconds: float, event: Observed) -> None:
        self._quality.observe(at_unix_seconds, event)
        view = self._quality.view
        match event:
            case StepTable():
                self._set("loss", event.event.loss)
                self._set("epoch", event.event.epoch)
            case Logged():
                self._show_rates(view.learning_rates)
                for name, value in view.logged.items():
                    self._set_known("logged", value, name=name)
                self._set_known("remaining_seconds", view.remaining_seconds)
                self._set_known("progress_ratio", view.progress_ratio)
            case Evaluated():
                for metric, value in view.evaluation.items():
                    self._set_known("evaluation", value, metric=metric)
            case CheckpointWritten():
                self._set_known("checkpoint_step", view.checkpoint_step)
                self._set_known("best_checkpoint_step", view.best_checkpoint_step)
            case RunEnded():
                self._set("remaining_seconds", 0.0)

    def _show_rates(self, rates: Sequence[float | None]) -> None:
        """Of the groups that there are now: those that have become alike are one."""
        for group in range(len(rates), self._num_rates):
            self._forget("learning_rate", group=str(group))
        self._num_rates = len(rates)
        for group, rate in enumerate(rates):
            self._set_known("learning_rate", rate, group=str(group))

    def _set_state(self, state: str) -> None:
        for one in STATES:
            self._set("run_state", float(one == state), state=one)

    def _joined(self, event: WorkersJoined) -> None:
        for worker in set(self._members) - set(event.workers):
            self._slow.pop(worker, None)
            for entry in WORKER:
                self._forget(entry.name, worker=str(worker))
        self._members = event.workers
        self._set("world_size", len(event.workers))
        self._set("rendezvous_id", event.rendezvous_id)
        self._add("oom", 0.0)  # all are heard of, so none is known to have happened
        for reason in RESETS:  # a counter that begins at 1 has never increased, to Prometheus
            self._add("resets", 0.0, reason=reason)
        for reason in REASONS:
            self._add("guard_episodes", 0.0, reason=reason)
        for action in get_args(Action):
            self._add("balancer_decisions", 0.0, action=action.replace(" ", "_"))
        self._count_slow()
        for rank, worker in enumerate(event.workers):
            self._set("worker_rank", rank, worker=str(worker))

    def _timed(self, at_unix_seconds: float, table: StepTable) -> None:
        self._set("last_step_timestamp_seconds", at_unix_seconds)
        self._add("steps", table.num_steps)
        self._add("samples", table.num_steps * table.samples_per_step)
        if table.is_first or math.isnan(table.step_seconds):
            return
        self._set("load_imbalance_ratio", table.imbalance_ratio)
        self._set("goodput_ratio", table.samples_per_second / table.ideal_samples_per_second)
        self._set("samples_per_second", table.samples_per_second)
        last = max(table.measured, key=lambda worker: _known(table.lateness_seconds[worker]))
        at_step = {"step": str(table.step), "worker": str(last)}
        self._see("step_duration_seconds", table.step_seconds, {}, exemplar=at_step)
        self._add("exposed_comm_seconds", table.exposed_comm_seconds * table.num_steps)
        rows = table.measured.values()
        hidden = [row.overlapped_comm_seconds for row in rows]
        self._add("overlapped_comm_seconds", table.num_steps * sum(hidden) / len(hidden))
        for worker, row in table.measured.items():
            at_step = {"step": str(table.step), "worker": str(worker)}
            for phase, field in PHASE_FIELDS.items():
                seconds = getattr(row, field)
                self._see("phase_duration_seconds", seconds, {"phase": phase}, exemplar=at_step)
            self._see("staleness_steps", row.staleness_steps, {})
        self._workers(table)

    def _workers(self, table: StepTable) -> None:
        speeds = {worker: row.samples_per_busy_second for worker, row in table.measured.items()}
        fastest = max((s for s in speeds.values() if math.isfinite(s)), default=math.nan)
        for worker, row in table.measured.items():
            values = {
                "local_batch_size": row.local_batch_size,
                "step_seconds": row.step_seconds,
                "data_wait_seconds": row.data_wait_seconds,
                "busy_seconds": row.busy_seconds,
                "lag_steps": row.lag_steps,
                "lateness_seconds": table.lateness_seconds[worker],
                "speed_ratio": speeds[worker] / fastest if fastest > 0 else math.nan,
                "memory_headroom_ratio": 1.0
                - row.memory_bytes / (row.memory_limit_bytes or math.nan),
            }
            for name, value in values.items():
                self._set(f"worker_{name}", value, worker=str(worker))

    def _operations(self, event: CollectivesTimed) -> None:
        speeds: dict[tuple[str, str], tuple[float, float]] = {}
        for entry in event.operations:
            labels = {"op": entry.op, "backend": entry.backend}
            bucket = str(entry.size_bucket_bytes)
            mean = entry.total_seconds / entry.count
            of_size = {"op": entry.op, "backend": entry.backend, "size_bucket": bucket}
            self._see("collective_duration_seconds", mean, of_size)
            self._add("collective_operations", entry.count, **labels, size_bucket=bucket)
            self._add("collective_bytes", entry.num_bytes, **labels)
            num_bytes, seconds = speeds.get((entry.op, entry.backend), (0.0, 0.0))
            moved = entry.num_bytes * bus_factor(entry.op, event.num_workers)
            speeds[entry.op, entry.backend] = num_bytes + moved, seconds + entry.total_seconds
        for (op, backend), (num_bytes, seconds) in speeds.items():
            speed = num_bytes / seconds if seconds > 0 else math.nan
            name = "collective_bus_bandwidth_bytes_per_second"
            self._set(name, speed, op=op, backend=backend)

    def _count_aside(self, event: WorkerStarted | WorkerQuarantined | SetAsideReported) -> None:
        if not isinstance(event, SetAsideReported):
            self._aside.discard(event.worker)
        elif event.what == "tried":
            self._aside.update(event.workers)
        self._set("set_aside_workers", len(self._aside))

    def _mark_slow(self, worker: WorkerId, cause: str | None) -> None:
        self._slow.pop(worker, None)
        if cause is not None:
            self._slow[worker] = cause
        self._count_slow()

    def _count_slow(self) -> None:
        causes = list(self._slow.values())
        for cause in CAUSES:
            self._set("stragglers", causes.count(cause), cause=cause)

    def _set_known(self, family: str, value: float | None, **labels: str) -> None:
        self._set(family, math.nan if value is None else value, **labels)

    def _set(self, family: str, value: float, **labels: str) -> None:
        """A gauge's value; one that was not measured is taken away."""
        if math.isfinite(value):
            self._gauges[family].labels(run_id=self._run_id, **labels).set(value)
        else:
            self._forget(family, **labels)

    def _add(self, name: str, value: float, **labels: str) -> None:
        if math.isfinite(value):
            self._counters[name].labels(run_id=self._run_id, **labels).inc(value)

    def _see(
        self,
        name: str,
        value: float,
        labels: dict[str, str],
        *,
        exemplar: dict[str, str] | None = None,
    ) -> None:
        if exemplar and sum(map(len, (*exemplar, *exemplar.values()))) > MAX_EXEMPLAR_CHARACTERS:
            exemplar = None
        if math.isfinite(value):
            histogram = self._histograms[name].labels(run_id=self._run_id, **labels)
            histogram.observe(value, exemplar)

    def _forget(self, family: str, **labels: str) -> None:
        self._gauges[family].remove_by_labels({"run_id": self._run_id, **labels})


def _is_out_of_memory(event: OutOfMemory | Crashed) -> bool:
    return isinstance(event, OutOfMemory) or event.error.startswith(OUT_OF_MEMORY)


def _known(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else -math.inf
