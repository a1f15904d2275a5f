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
    def exported(self) -> str:
        """As Prometheus shows it."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")


RUN = (
    MetricName("run_info", "gauge", "Always 1; `run` is the name of the run's folder.", ("run",)),
    MetricName("run_active", "gauge", "1 while the run lasts, 0 when it has ended."),
    MetricName("run_exit_code", "gauge", "With which the run has ended; absent before."),
    MetricName("world_size", "gauge", "Workers that train together."),
    MetricName("rendezvous_id", "gauge", "Version of the membership; changes at each reset."),
    MetricName("restarts", "counter", "Workers that were started again."),
    MetricName("resets", "counter", "Rendezvous after the first that survived.", ("reason",)),
    MetricName("steps", "counter", "Optimizer steps that were timed."),
    MetricName("samples", "counter", "Samples of the steps that were timed."),
    MetricName(
        "step_duration_seconds",
        "histogram",
        "Step of the slowest worker; one observation, a mean, for each exchange of timings.",
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
    MetricName("last_step_timestamp_seconds", "gauge", "When the last step was heard of."),
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
NODE = (
    MetricName("node_cpu_seconds", "counter", "Time of all CPUs.", ("mode",)),
    MetricName("node_network_bytes", "counter", "Bytes, without loopback.", ("direction",)),
    MetricName("node_disk_bytes", "counter", "Bytes of all disks.", ("direction",)),
    MetricName("agent_collect_duration_seconds", "gauge", "Time that this collection took."),
    MetricName(
        "agent_collect_errors", "counter", "Collections that failed, by source.", ("source",)
    ),
)
DEVICE = (
    MetricName("device_info", "gauge", "Always 1.", ("device_uuid", "model")),
    MetricName(
        "device_utilization_ratio", "gauge", "Part of the time a kernel ran.", ("device_uuid",)
    ),
    MetricName("device_memory_used_bytes", "gauge", "By all processes.", ("device_uuid",)),
    MetricName("device_memory_total_bytes", "gauge", "All of its memory.", ("device_uuid",)),
    MetricName("device_temperature_celsius", "gauge", "Of the chip.", ("device_uuid",)),
    MetricName("device_power_watts", "gauge", "Drawn by the board.", ("device_uuid",)),
    MetricName("device_energy_joules", "counter", "Since the driver is loaded.", ("device_uuid",)),
    MetricName("device_clock_hertz", "gauge", "Of the multiprocessors.", ("device_uuid",)),
    MetricName(
        "device_throttled_seconds",
        "counter",
        "Time for which the clock was held down.",
        ("device_uuid", "reason"),
    ),
    MetricName(
        "device_pcie_bytes_per_second", "gauge", "Over 20 ms.", ("device_uuid", "direction")
    ),
    MetricName("device_nvlink_bytes", "counter", "Of all links.", ("device_uuid", "direction")),
    MetricName(
        "device_errors", "counter", "Of memory (ECC) and PCIe replays.", ("device_uuid", "kind")
    ),
)

HEAD = """# Metrics

Made from `hetero_hvd/core/view/metric_names.py`; a test compares the two. What is unknown is
absent, never zero.

The driver serves `/metrics` and `/sd` (targets for Prometheus) on the address that it prints at
the start; `http_port` fixes the port. TLS and the token are those of the live page. A machine's
own metrics: `python -m hetero_hvd.probes.machine.node_metrics --node NAME --port PORT`. It tells of
NVIDIA GPUs too, unless dcgm-exporter does: with `--devices auto` (the default) it leaves them
alone as long as something listens on this machine's port 9400; `--devices always` and `--devices
never` decide. A GPU costs 40 ms a scrape, for PCIe is measured that long. What it cannot ask is
counted under `agent_collect_errors_total{source="device"}`.

`hetero-hvd stack DIR --driver http://HOST:PORT` writes prometheus.yml, rules with alerts, and
Grafana provisioning with four dashboards: cluster, run, worker, collectives. `/sd` lists
the nodes whose [agent](../guide/discovery.md) serves metrics; add other exporters to
prometheus.yml.

Each run has its own `run_id`: the name of its folder and eight random digits. The exporter puts it
on all series of the run, so `/sd` attaches nothing. At the end of a run the driver waits for one
more scrape, if somebody has scraped regularly: then `run_active` is 0. A series of it that stops at
1 belongs to a driver that was killed or cannot be reached, and `HeteroHvdDriverLost` fires.
"""


def reference() -> str:
    """The page docs/reference/metrics.md."""
    parts = [
        HEAD,
        _table("Run and workers, from the driver (label `run_id` on all)", (*RUN, *WORKER)),
        _table("Machine, from a node's exporter (label `node` on all)", NODE),
        _table("GPUs, from a node's exporter (label `node` on all)", DEVICE),
    ]
    return "\n".join(parts)


def _table(title: str, names: tuple[MetricName, ...]) -> str:
    lines = [f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
    for entry in names:
        labels = ", ".join(f"`{label}`" for label in entry.labels)
        lines.append(f"| `{entry.exported}` | {entry.kind} | {labels} | {entry.doc} |")
    return "\n".join(lines) + "\n"
