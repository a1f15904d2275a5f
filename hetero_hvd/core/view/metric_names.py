"""Every metric that Prometheus can scrape from us: the one place where its name stands.

docs/reference/metrics.md is made of this table; the exporters take their instruments from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "hetero_hvd_"

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """One family.

    Attributes:
        name: Without the prefix; a counter's without `_total`, which the client adds.
        kind: How it behaves.
        doc: One line for people.
        labels: Besides `run_id` (metrics of a run) or `node` (metrics of a machine).
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """As Prometheus shows it, and exports name it, without the prefix."""
        return self.name + ("_total" if self.kind == "counter" else "")

    @property
    def exported(self) -> str:
        """As Prometheus shows it."""
        return PREFIX + self.family


RUN = (
    MetricName("run_info", "gauge", "Always 1; `run` is the name of the run's folder.", ("run",)),
    MetricName("run_active", "gauge", "1 while the run lasts, 0 when it has ended."),
    MetricName("run_state", "gauge", "1 for the state of the run, 0 for the others.", ("state",)),
    MetricName("run_start_timestamp_seconds", "gauge", "When the run, or this start of it, began."),
    MetricName("run_exit_code", "gauge", "With which the run has ended; absent before."),
    MetricName("world_size", "gauge", "Workers that train together."),
    MetricName("rendezvous_id", "gauge", "Version of the membership; changes at each reset."),
    MetricName("restarts", "counter", "Workers that were started again."),
    MetricName("resets", "counter", "Rendezvous after the first that survived.", ("reason",)),
    MetricName("steps", "counter", "Optimizer steps that were timed."),
    MetricName("samples", "counter", "Samples of the steps that were timed."),
    MetricName("samples_per_second", "gauge", "Of all workers together, at the last exchange."),
    MetricName(
        "step_duration_seconds",
        "histogram",
        "Of the slowest worker; one observation, a mean, for each exchange of timings. Ten buckets "
        "a decade; as OpenMetrics each has its newest `step`, and its last `worker`.",
    ),
    MetricName(
        "phase_duration_seconds",
        "histogram",
        "A phase of a step; one observation, a mean, for each worker and exchange.",
        ("phase",),
    ),
    MetricName(
        "exposed_comm_seconds",
        "counter",
        "Time that even the last worker to arrive waited for reductions.",
    ),
    MetricName(
        "overlapped_comm_seconds",
        "counter",
        "Time with a reduction under way beside other work, mean over the workers.",
    ),
    MetricName(
        "collective_duration_seconds",
        "histogram",
        "From submission to completion, as rank 0 sees it; one observation, a mean, for each "
        "report and size.",
        ("op", "backend", "size_bucket"),
    ),
    MetricName(
        "collective_operations",
        "counter",
        "Submitted and completed, as rank 0 counts them.",
        ("op", "backend", "size_bucket"),
    ),
    MetricName("collective_bytes", "counter", "Bytes of rank 0's tensors.", ("op", "backend")),
    MetricName(
        "collective_bus_bandwidth_bytes_per_second",
        "gauge",
        "Of the last seconds; the wait for the last worker is in it, so the network can do more.",
        ("op", "backend"),
    ),
    MetricName(
        "load_imbalance_ratio", "gauge", "(largest - smallest) / mean of the workers' busy times."
    ),
    MetricName(
        "goodput_ratio", "gauge", "Samples per second / what the workers can do without waiting."
    ),
    MetricName("stragglers", "gauge", "Workers slower than they should be.", ("cause",)),
    MetricName("balancer_decisions", "counter", "Decisions of the balancer.", ("action",)),
    MetricName("set_aside_workers", "gauge", "Left out, as they have no samples to compute."),
    MetricName("guard_episodes", "counter", "Times that a device began to ail.", ("reason",)),
    MetricName("guard_drained_devices", "gauge", "Whose workers the guard has let go for now."),
    MetricName(
        "guard_refused_devices",
        "gauge",
        "Whose workers should go, and stay: too few would be left, or too many would be away.",
    ),
    MetricName(
        "planned_gain_ratio", "gauge", "Step time that the last judged plan would save, 0 to 1."
    ),
    MetricName("oom", "counter", "Times that a worker's memory did not suffice."),
    MetricName(
        "staleness_steps",
        "histogram",
        "Steps under way after a step, with a staleness bound; one observation, a mean, for each "
        "worker and exchange.",
    ),
    MetricName(
        "data_source_wait_seconds",
        "counter",
        "Waits for data, all workers together, by the source that they were for.",
        ("source",),
    ),
    MetricName(
        "data_source_bytes", "counter", "Read from a source of data by all workers.", ("source",)
    ),
    MetricName("last_step_timestamp_seconds", "gauge", "When the last step was heard of."),
    MetricName("loss", "gauge", "Mean over the batch of the last step; absent where it is NaN."),
    MetricName("epoch", "gauge", "Under way, from 0."),
    MetricName(
        "remaining_seconds",
        "gauge",
        "Until the last epoch is done, at the pace of late; 0 at the end.",
    ),
    MetricName("progress_ratio", "gauge", "Part of all steps that is done; absent: not known."),
    MetricName("learning_rate", "gauge", "Of a group of parameters; one if alike.", ("group",)),
    MetricName("evaluation", "gauge", "Newest result over a whole held-out set.", ("metric",)),
    MetricName("logged", "gauge", "Newest value that the script has logged.", ("name",)),
    MetricName("checkpoint_failures", "counter", "Checkpoints that could not be written."),
    MetricName("checkpoint_step", "gauge", "Applied steps of the newest checkpoint."),
    MetricName("best_checkpoint_step", "gauge", "Of the best one by the metric the job names."),
)
QUEUE = (
    MetricName(
        "queue_jobs",
        "gauge",
        "Jobs that have not ended: `waiting` for devices, `held`, `blocked` until others have "
        "ended or a retry is due, `running`.",
        ("pool", "state"),
    ),
    MetricName(
        "queue_devices",
        "gauge",
        "Devices by what they do: `busy`, `free`, `guest_busy` (their owner uses them), "
        "`failing`, `lost`.",
        ("pool", "state"),
    ),
    MetricName(
        "queue_longest_wait_seconds",
        "gauge",
        "Of the jobs that could start, how long the one that has waited longest did; 0: none.",
        ("pool",),
    ),
    MetricName(
        "queue_wait_seconds",
        "histogram",
        "From when a job could start, or had its devices taken away, until it was started.",
        ("pool",),
    ),
    MetricName(
        "queue_jobs_ended",
        "counter",
        "Jobs that have `succeeded`, `failed` or were `cancelled`, since the hub was started.",
        ("pool", "outcome"),
    ),
    MetricName(
        "queue_device_seconds",
        "counter",
        "Device-seconds that users have had, an hour of a slow device being less than one of the "
        "fastest kind, since the hub was started.",
        ("pool", "user"),
    ),
)
WORKER = (
    MetricName("worker_rank", "gauge", "Rank in the present rendezvous.", ("worker",)),
    MetricName("worker_local_batch_size", "gauge", "Samples per step.", ("worker",)),
    MetricName("worker_step_seconds", "gauge", "Duration of a step.", ("worker",)),
    MetricName("worker_data_wait_seconds", "gauge", "Wait for the loader per step.", ("worker",)),
    MetricName("worker_busy_seconds", "gauge", "Own time per step, without waits.", ("worker",)),
    MetricName(
        "worker_lateness_seconds", "gauge", "Longest wait of any worker - own wait.", ("worker",)
    ),
    MetricName(
        "worker_lag_steps",
        "gauge",
        "Steps under way that only this worker has not applied yet: the bound on the slowest.",
        ("worker",),
    ),
    MetricName(
        "worker_speed_ratio", "gauge", "Samples per busy second / the fastest's.", ("worker",)
    ),
    MetricName(
        "worker_memory_headroom_ratio", "gauge", "1 - peak memory / what it can have.", ("worker",)
    ),
)
EXPORTED = (
    MetricName(
        "worker_phase_seconds",
        "gauge",
        "A phase of a step, mean over an interval. To scrape it there would be too many; "
        "`phase_duration_seconds` tells of all workers together.",
        ("worker", "phase"),
    ),
)
"""Of `hetero-hvd export` alone; its other names are those above."""
