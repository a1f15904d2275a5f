"""What the dashboards show: one table of panels, each with its queries and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from hetero_hvd.monitoring.gpu_rules import RECORDED
from hetero_hvd.run.web.scraping.metrics import STATES

PanelKind = Literal["stat", "gauge", "table", "state-timeline", "heatmap", "timeseries"]

P = "hetero_hvd_"
G = RECORDED
RUN = '{run=~"$run"}'
ONE = '{run=~"$run",worker=~"$worker"}'
NODE = '{node=~"$node"}'
PHASES = '{run=~"$run",phase!="h2d"}'  # an old label: metrics.PHASE_FIELDS
OVER = "[$__rate_interval]"
STEP_BUCKETS = f"rate({P}step_duration_seconds_bucket{RUN}{OVER})"
BY_NODE = "max by (node)"  # several runs may tell of one node
BY_WAY = "max by (node, direction)"
DEVICE = "{{node}} GPU {{device}}"
WAY = "{{node}} {{direction}}"
SIZED = "{{run}} {{op}} {{backend}} {{size_bucket}} B"
KIND = "{{run}} {{op}} {{backend}}"
WORKER = "{{run}} {{worker}}"

GOOD, NOTE, BAD, DARK = "green", "orange", "red", "blue"
STATE_COLORS = dict(zip(STATES, (NOTE, GOOD, BAD, DARK), strict=True))
"""State of a run to its colour; as a number it is its place, from 1."""

STATE = " or ".join(
    f'{P}run_state{{run=~"$run",state="{state}"}} * {number}'
    for number, state in enumerate(STATES, 1)
)


class Query(NamedTuple):
    """What a panel asks Prometheus.

    Attributes:
        expr: In PromQL, with variables of the dashboard.
        legend: Name of a series; of a table, title of the column.
    """

    expr: str
    legend: str = "{{run}}"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One of a dashboard.

    Attributes:
        title: Its head.
        description: What it tells, and what to do about it.
        queries: What it shows.
        unit: By Grafana's name.
        kind: How it shows it.
        thresholds: From a value on, a colour; below the first one all is well.
        is_less_worse: Whether low values are the bad ones.
        width: Of 24.
        height: In rows of Grafana's grid.
        maximum: Of its axis; None: by the values.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: PanelKind = "timeseries"
    thresholds: tuple[tuple[float, str], ...] = ()
    is_less_worse: bool = False
    width: int = 12
    height: int = 8
    maximum: float | None = None


def _panel(title: str, expr: str, unit: str, description: str, legend: str = "{{run}}") -> Panel:
    return Panel(title=title, description=description, queries=(Query(expr, legend),), unit=unit)


def _stat(
    title: str,
    expr: str,
    unit: str,
    description: str,
    *thresholds: tuple[float, str],
    kind: PanelKind = "stat",
    is_less_worse: bool = False,
) -> Panel:
    return Panel(
        title=title,
        description=description,
        queries=(Query(expr),),
        unit=unit,
        kind=kind,
        thresholds=thresholds,
        is_less_worse=is_less_worse,
        width=4,
        height=5,
        maximum=1.0 if kind == "gauge" else None,
    )


def _mean(family: str, select: str) -> str:
    """Of the observations of a histogram."""
    return f"rate({P}{family}_sum{select}{OVER}) / (rate({P}{family}_count{select}{OVER}) > 0)"


STATES_PANEL = Panel(
    title="States",
    description="What each run does: starting, training, stalled (no step for ten usual intervals) "
    "or ended. A bar that stops without an end is a driver that was killed or cannot be reached.",
    queries=(Query(f"max by (run) ({STATE})"),),
    kind="state-timeline",
    width=24,
    height=6,
)

NODE_PANELS = (
    _panel("CPU in use", f"{BY_NODE} ({P}node_cpu_use_ratio{NODE})", "percentunit",
           "Part of all processors' time. Full on one node only: its loader or its own work binds.",
           "{{node}}"),
    _panel("Node memory in use", f"{BY_NODE} ({P}node_memory_used_bytes{NODE})", "bytes",
           "What cannot be had without swapping.", "{{node}}"),
    _panel("Network", f"{BY_WAY} ({P}node_network_bytes_per_second{NODE})", "Bps",
           "Of all interfaces without the loopback.", WAY),
    _panel("Disk", f"{BY_WAY} ({P}node_disk_bytes_per_second{NODE})", "Bps",
           "Of all disks: data that is read, checkpoints that are written.", WAY),
    _panel("GPU in use", f"{G}use_ratio{NODE}", "percentunit",
           "Part of the time in which a kernel of anybody ran. Low: it waits for data or others.",
           DEVICE),
    _panel("GPU memory in use", f"{G}memory_used_bytes{NODE}", "bytes", "By all processes.",
           DEVICE),
    _panel("GPU memory moves data, part of the time", f"{G}dram_active_ratio{NODE}", "percentunit",
           "Near 1 the memory's bandwidth binds, not the arithmetic.", DEVICE),
    Panel(title="GPU temperature", description="Of the chip. From 87 degrees on for two minutes "
          "HeteroHvdHot fires, and most clocks are held down soon.",
          queries=(Query(f"{G}temperature_celsius{NODE}", DEVICE),), unit="celsius",
          thresholds=((80, NOTE), (87, BAD))),
    _panel("GPU power", f"{G}power_watts{NODE}", "watt", "Drawn by the board.", DEVICE),
    Panel(title="GPU throttled, part of the time", description="Its clock is held down by heat or "
          "the power supply; the reason is in the name. See HeteroHvdThrottled.",
          queries=(Query(f"{G}throttled_ratio{NODE}", DEVICE + " {{reason}}"),),
          unit="percentunit", thresholds=((0.01, NOTE), (0.1, BAD))),
    Panel(title="GPU errors, last ten minutes", description="Of its memory that were not "
          "corrected, and of its driver (XID). Any is a reason to look; see HeteroHvdGpuErrors.",
          queries=(Query(f"{G}new_errors{NODE}", DEVICE + " {{kind}}"),), thresholds=((1, BAD),)),
    _panel("Sampling", f"{BY_NODE} ({P}node_sample_duration_seconds{NODE})", "s",
           "Time that a sample of a node takes; long: something of it answers slowly.", "{{node}}"),
)  # fmt: skip

QUEUE_PANELS = (
    _panel("Queue: jobs", f"{P}queue_jobs", "short", "That have not ended, by what they do.",
           "{{pool}} {{state}}"),
    _panel("Queue: devices", f"{P}queue_devices", "short", "By what they do.",
           "{{pool}} {{state}}"),
    Panel(title="Queue: longest wait", description="Of the job of a pool that has waited longest "
          "and could start. From four hours on HeteroHvdQueueWait fires.",
          queries=(Query(f"{P}queue_longest_wait_seconds", "{{pool}}"),), unit="s",
          thresholds=((3600, NOTE), (4 * 3600, BAD))),
    _panel("Queue: wait of those started in the last hour, 95th percentile",
           f"histogram_quantile(0.95, sum by (pool, le) (rate({P}queue_wait_seconds_bucket[1h])))",
           "s", "Until they were started.", "{{pool}}"),
    _panel("Queue: jobs that have ended in the last hour",
           f"sum by (outcome) (increase({P}queue_jobs_ended_total[1h]))", "short",
           "By how they have ended.", "{{outcome}}"),
    _panel("Queue: devices that a user has, as of the fastest kind",
           f"sum by (user) (rate({P}queue_device_seconds_total[5m]))", "short",
           "An hour of a slow device counts for less.", "{{user}}"),
)  # fmt: skip

PANELS: dict[str, tuple[Panel, ...]] = {
    "cluster": (
        STATES_PANEL,
        Panel(
            title="Runs",
            description="The newest figures of each run that is scraped; empty is not known.",
            queries=(
                Query(f"max by (run) ({P}world_size{RUN})", "Workers"),
                Query(f"max by (run) ({P}samples_per_second{RUN})", "Samples per second"),
                Query(f"max by (run) ({P}progress_ratio{RUN}) * 100", "Done, %"),
                Query(f"max by (run) ({P}remaining_seconds{RUN}) / 60", "Minutes left"),
                Query(f"max by (run) ({P}loss{RUN})", "Loss"),
                Query(f"sum by (run) ({P}stragglers{RUN})", "Stragglers"),
            ),
            kind="table",
            width=24,
        ),
        _panel("Workers", f"{P}world_size{RUN}", "short", "That train together, of each run."),
        _panel("Samples per second", f"sum by (run) (rate({P}samples_total{RUN}{OVER}))", "ops",
               "Throughput of each run."),
        *NODE_PANELS,
        *QUEUE_PANELS,
    ),
    "run": (
        _stat("Done", f"{P}progress_ratio{RUN}", "percentunit",
              "Part of all steps; empty where nobody knows how many there will be.",
              kind="gauge"),
        _stat("Time left", f"{P}remaining_seconds{RUN}", "s", "At the pace of late."),
        _stat("Epoch", f"{P}epoch{RUN}", "none", "Under way, from 0."),
        _stat("Loss", f"{P}loss{RUN}", "none", "Mean over the batch of the last step."),
        _stat("Goodput", f"{P}goodput_ratio{RUN}", "percentunit",
              "Samples per second against what the workers could do if none waited for another.",
              (0.7, NOTE), (0.9, GOOD), kind="gauge", is_less_worse=True),
        _stat("Last step, seconds ago", f"time() - {P}last_step_timestamp_seconds{RUN}", "s",
              "From two minutes on HeteroHvdStalled fires.", (30, NOTE), (120, BAD)),
        STATES_PANEL,
        _panel("Loss over time", f"{P}loss{RUN}", "none", "Mean over the batch of the last step."),
        _panel("Evaluations", f"{P}evaluation{RUN}", "none",
               "Newest result over a whole held-out set.", "{{run}} {{metric}}"),
        _panel("Learning rate", f"{P}learning_rate{RUN}", "none",
               "Of a group of parameters; one where all are alike.", "{{run}} group {{group}}"),
        _panel("What the script logs", f"{P}logged{RUN}", "none", "Newest value of each name.",
               "{{run}} {{name}}"),
        _panel("Samples per second", f"rate({P}samples_total{RUN}{OVER})", "ops",
               "Throughput; drops at a reset, and where a worker is slower."),
        Panel(title="Step", description="Duration of the slowest worker's step: median and 95th "
              "percentile. A wide gap between them is a worker that is slow now and then.",
              queries=(
                  Query(f"histogram_quantile(0.5, {STEP_BUCKETS})", "{{run}} median"),
                  Query(f"histogram_quantile(0.95, {STEP_BUCKETS})", "{{run}} 95th percentile"),
              ), unit="s"),
        Panel(title="Steps by duration", description="How many steps took how long; a second band "
              "is something that happens to some steps only. A diamond is an exemplar: a step.",
              queries=(Query(f"sum by (le) (increase({P}step_duration_seconds_bucket{RUN}{OVER}))",
                             "{{le}}"),),
              unit="s", kind="heatmap"),
        _panel("Shares", f"{P}worker_local_batch_size{RUN}", "short",
               "Samples of each worker in a step; moves are the balancer's.", WORKER),
        Panel(title="Imbalance", description="(largest - smallest) / mean of the workers' own "
              "times. Above a quarter for five minutes HeteroHvdImbalanced fires.",
              queries=(Query(f"{P}load_imbalance_ratio{RUN}"),), unit="percentunit",
              thresholds=((0.1, NOTE), (0.25, BAD))),
        Panel(title="Stragglers", description="Workers slower than they should be, by cause.",
              queries=(Query(f"{P}stragglers{RUN}", "{{run}} {{cause}}"),),
              thresholds=((1, BAD),)),
        Panel(title="Devices that the guard has drained", description="Their workers are away "
              "until the device is well; see HeteroHvdGuardDrained.",
              queries=(Query(f"{P}guard_drained_devices{RUN}"),), thresholds=((1, BAD),)),
        _panel("Devices that ail, last ten minutes", f"increase({P}guard_episodes_total{RUN}[10m])",
               "short", "Times that a device began to ail, by reason.", "{{run}} {{reason}}"),
        _panel("Decisions", f"increase({P}balancer_decisions_total{RUN}{OVER})", "short",
               "Of the balancer.", "{{run}} {{action}}"),
    ),
    "worker": (
        Panel(
            title="Workers",
            description="The newest figures of each worker, in the order of ranks.",
            queries=(
                Query(f"max by (run, worker) ({P}worker_rank{ONE})", "Rank"),
                Query(f"max by (run, worker) ({P}worker_local_batch_size{ONE})", "Share"),
                Query(f"max by (run, worker) ({P}worker_step_seconds{ONE})", "Step, s"),
                Query(f"max by (run, worker) ({P}worker_busy_seconds{ONE})", "Busy, s"),
                Query(f"max by (run, worker) ({P}worker_lateness_seconds{ONE})", "Late, s"),
                Query(f"max by (run, worker) ({P}worker_speed_ratio{ONE})", "Speed ratio"),
            ),
            kind="table",
            width=24,
        ),
        _panel("Busy", f"{P}worker_busy_seconds{ONE}", "s", "Own time of a step, without waits.",
               WORKER),
        _panel("Step", f"{P}worker_step_seconds{ONE}", "s", "All of a step.", WORKER),
        _panel("Data wait", f"{P}worker_data_wait_seconds{ONE}", "s",
               "For the loader, in a step. More than the others have: its disk or its CPU binds.",
               WORKER),
        _panel("Lateness", f"{P}worker_lateness_seconds{ONE}", "s",
               "How much later than the first one it was ready to reduce: others wait so long.",
               WORKER),
        _panel("Speed against the fastest", f"{P}worker_speed_ratio{ONE}", "percentunit",
               "Samples per second of own time. A fall is a worker that became slower.", WORKER),
        Panel(title="Memory left", description="Of what it can have, at the peak. Near 0 the next "
              "larger batch does not fit.",
              queries=(Query(f"{P}worker_memory_headroom_ratio{ONE}", WORKER),),
              unit="percentunit", thresholds=((0.05, NOTE), (0.1, GOOD)), is_less_worse=True),
        _panel("Share", f"{P}worker_local_batch_size{ONE}", "short", "Samples in a step.", WORKER),
        _panel("Rank", f"{P}worker_rank{ONE}", "short", "In the present rendezvous.", WORKER),
    ),
    "collectives": (
        _panel("Exposed communication, part of the time",
               f"rate({P}exposed_comm_seconds_total{RUN}{OVER})", "percentunit",
               "Even the last worker to arrive waits so long: what a faster network would save."),
        _panel("Hidden communication, part of the time",
               f"rate({P}overlapped_comm_seconds_total{RUN}{OVER})", "percentunit",
               "A reduction was under way beside other work: it costs nothing."),
        _panel("Phases, mean", _mean("phase_duration_seconds", PHASES), "s",
               "Where the time of a step goes, over all workers.", "{{run}} {{phase}}"),
        _panel("Operations", f"rate({P}collective_operations_total{RUN}{OVER})", "ops",
               "As rank 0 counts them, by size.", SIZED),
        _panel("Duration, mean", _mean("collective_duration_seconds", RUN), "s",
               "From submission to completion; the wait for the last worker is in it.", SIZED),
        _panel("Bytes", f"rate({P}collective_bytes_total{RUN}{OVER})", "Bps",
               "Of rank 0's tensors.", KIND),
        _panel("Bus bandwidth", f"{P}collective_bus_bandwidth_bytes_per_second{RUN}", "Bps",
               "Compare with `hetero-hvd benchmark collectives`; waits for others are in it.",
               KIND),
        _panel("Who is waited for", f"{P}worker_lateness_seconds{RUN}", "s",
               "The one at the top holds the others up.", WORKER),
    ),
}  # fmt: skip
"""Dashboard to its panels, from top left on."""
