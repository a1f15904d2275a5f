"""Grafana dashboards as plain data: one table of panels, one shape around it.

grafana-foundation-sdk is not used: its versions carry an epoch of build time, so that no lower
bound can be stated, and all we need is a title, a query and a unit.
"""

from __future__ import annotations

from typing import Any

from hetero_hvd.monitoring.gpu_rules import RECORDED

SOURCE = {"type": "prometheus", "uid": "${source}"}
RUN = '{run_id="$run"}'
ONE = '{run_id="$run",worker="$worker"}'
NODE = '{node=~"$node"}'
DEVICE = "{{node}} GPU {{device}}"
WAY = "{{node}} {{direction}}"
NODE_MAX = "max by (node)"  # several runs may tell of one node
WAY_MAX = "max by (node, direction)"
P = "hetero_hvd_"
G = RECORDED
Panel = tuple[str, str, str, str]
"""Title, query, unit, legend."""

PHASES = '{run_id="$run",phase!="h2d"}'  # an old label: metrics.PHASE_FIELDS
PHASE_SECONDS = (
    f"rate({P}phase_duration_seconds_sum{PHASES}[1m])"
    f" / (rate({P}phase_duration_seconds_count{PHASES}[1m]) > 0)"
)

MEAN_SECONDS = (
    f"rate({P}collective_duration_seconds_sum{RUN}[1m])"
    f" / (rate({P}collective_duration_seconds_count{RUN}[1m]) > 0)"
)

PANELS: dict[str, tuple[Panel, ...]] = {
    "cluster": (
        ("Workers", f"{P}world_size", "short", "{{run_id}}"),
        ("Samples per second", f"sum by (run_id) (rate({P}samples_total[1m]))", "ops", ""),
        ("CPU in use", f"{NODE_MAX} ({P}node_cpu_use_ratio{NODE})", "percentunit", "{{node}}"),
        (
            "Node memory in use",
            f"{NODE_MAX} ({P}node_memory_used_bytes{NODE})",
            "bytes",
            "{{node}}",
        ),
        ("Network", f"{WAY_MAX} ({P}node_network_bytes_per_second{NODE})", "Bps", WAY),
        ("Disk", f"{WAY_MAX} ({P}node_disk_bytes_per_second{NODE})", "Bps", WAY),
        ("GPU in use", f"{G}use_ratio{NODE}", "percentunit", DEVICE),
        ("GPU memory in use", f"{G}memory_used_bytes{NODE}", "bytes", DEVICE),
        (
            "GPU memory moves data, part of the time",
            f"{G}dram_active_ratio{NODE}",
            "percentunit",
            DEVICE,
        ),
        ("GPU temperature", f"{G}temperature_celsius{NODE}", "celsius", DEVICE),
        ("GPU power", f"{G}power_watts{NODE}", "watt", DEVICE),
        (
            "GPU throttled, part of the time",
            f"{G}throttled_ratio{NODE}",
            "percentunit",
            DEVICE + " {{reason}}",
        ),
        ("GPU errors, last ten minutes", f"{G}new_errors{NODE}", "short", DEVICE + " {{kind}}"),
        ("Sampling", f"{NODE_MAX} ({P}node_sample_duration_seconds{NODE})", "s", "{{node}}"),
        ("Queue: jobs", f"{P}queue_jobs", "short", "{{pool}} {{state}}"),
        ("Queue: devices", f"{P}queue_devices", "short", "{{pool}} {{state}}"),
        ("Queue: longest wait", f"{P}queue_longest_wait_seconds", "s", "{{pool}}"),
        (
            "Queue: wait of those started in the last hour, 95th percentile",
            f"histogram_quantile(0.95, sum by (pool, le) (rate({P}queue_wait_seconds_bucket[1h])))",
            "s",
            "{{pool}}",
        ),
        (
            "Queue: jobs that have ended in the last hour",
            f"sum by (outcome) (increase({P}queue_jobs_ended_total[1h]))",
            "short",
            "{{outcome}}",
        ),
        (
            "Queue: devices that a user has, as of the fastest kind",
            f"sum by (user) (rate({P}queue_device_seconds_total[5m]))",
            "short",
            "{{user}}",
        ),
    ),
    "run": (
        ("Samples per second", f"rate({P}samples_total{RUN}[1m])", "ops", ""),
        (
            "Step, 95th percentile",
            f"histogram_quantile(0.95, rate({P}step_duration_seconds_bucket{RUN}[1m]))",
            "s",
            "",
        ),
        ("Shares", f"{P}worker_local_batch_size{RUN}", "short", "{{worker}}"),
        ("Imbalance", f"{P}load_imbalance_ratio{RUN}", "percentunit", ""),
        ("Goodput", f"{P}goodput_ratio{RUN}", "percentunit", ""),
        ("Stragglers", f"{P}stragglers{RUN}", "short", "{{cause}}"),
        ("Devices that the guard has drained", f"{P}guard_drained_devices{RUN}", "short", ""),
        (
            "Devices that ail, last ten minutes",
            f"increase({P}guard_episodes_total{RUN}[10m])",
            "short",
            "{{reason}}",
        ),
        ("Decisions", f"increase({P}balancer_decisions_total{RUN}[1m])", "short", "{{action}}"),
    ),
    "worker": (
        ("Busy", f"{P}worker_busy_seconds{ONE}", "s", ""),
        ("Step", f"{P}worker_step_seconds{ONE}", "s", ""),
        ("Data wait", f"{P}worker_data_wait_seconds{ONE}", "s", ""),
        ("Lateness", f"{P}worker_lateness_seconds{ONE}", "s", ""),
        ("Speed against the fastest", f"{P}worker_speed_ratio{ONE}", "percentunit", ""),
        ("Memory left", f"{P}worker_memory_headroom_ratio{ONE}", "percentunit", ""),
        ("Share", f"{P}worker_local_batch_size{ONE}", "short", ""),
        ("Rank", f"{P}worker_rank{ONE}", "short", ""),
    ),
    "collectives": (
        (
            "Exposed communication, part of the time",
            f"rate({P}exposed_comm_seconds_total{RUN}[1m])",
            "percentunit",
            "",
        ),
        (
            "Phases, mean",
            PHASE_SECONDS,
            "s",
            "{{phase}}",
        ),
        (
            "Hidden communication, part of the time",
            f"rate({P}overlapped_comm_seconds_total{RUN}[1m])",
            "percentunit",
            "",
        ),
        (
            "Operations",
            f"rate({P}collective_operations_total{RUN}[1m])",
            "ops",
            "{{op}} {{backend}} {{size_bucket}} B",
        ),
        (
            "Duration, mean",
            MEAN_SECONDS,
            "s",
            "{{op}} {{backend}} {{size_bucket}} B",
        ),
        ("Bytes", f"rate({P}collective_bytes_total{RUN}[1m])", "Bps", "{{op}} {{backend}}"),
        (
            "Bus bandwidth",
            f"{P}collective_bus_bandwidth_bytes_per_second{RUN}",
            "Bps",
            "{{op}} {{backend}}",
        ),
        ("Who is waited for", f"{P}worker_lateness_seconds{RUN}", "s", "{{worker}}"),
    ),
}
VARIABLES = {
    "run": f"label_values({P}world_size, run_id)",
    "worker": f'label_values({P}worker_rank{{run_id="$run"}}, worker)',
    "node": f"label_values({P}node_load, node)",
}
ANNOTATIONS = {
    "resets": f"changes({P}rendezvous_id{RUN}[1m]) > 0",
    "plan changes": f'increase({P}balancer_decisions_total{{run_id="$run",action="move"}}[1m]) > 0',
}


def dashboards() -> dict[str, dict[str, Any]]:
    """Name to content, as Grafana's file provisioning reads it."""
    return {name: _dashboard(name) for name in PANELS}


def _dashboard(name: str) -> dict[str, Any]:
    wanted = {"cluster": ("node",), "worker": ("run", "worker")}.get(name, ("run",))
    marks = ANNOTATIONS if "run" in wanted else {}
    return {
        "uid": f"hetero-hvd-{name}",
        "title": f"hetero_hvd: {name}",
        "tags": ["hetero_hvd"],
        "schemaVersion": 38,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source(), *(_variable(variable) for variable in wanted)]},
        "annotations": {"list": [_mark(title, query) for title, query in marks.items()]},
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS[name])],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    is_many = name == "node"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": VARIABLES[name], "refId": name},
        "refresh": 2,
        "includeAll": is_many,
        "multi": is_many,
    }


def _mark(title: str, query: str) -> dict[str, Any]:
    return {"name": title, "datasource": SOURCE, "enable": True, "expr": query, "step": "5s"}


def _panel(number: int, title: str, query: str, unit: str, legend: str) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": "A", "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        ],
    }
