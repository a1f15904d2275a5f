"""The page docs/reference/metrics.md."""

from __future__ import annotations

from hetero_hvd.core.view.metric_names import EXPORTED, QUEUE, RUN, WORKER, MetricName
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE

HEAD = """# Metrics

Made from `hetero_hvd/core/view/metric_names.py` and `sample_metrics.py`; a test compares them. What
is unknown is absent, never zero.

The driver serves `/metrics` and `/sd` (targets for Prometheus) on the address that it prints at
the start; `http_port` fixes the port. TLS and the token are those of the live page. It tells of all
nodes of the run and their GPUs, also of those that only ssh reaches: see
[hardware](../operations/hardware.md#what-a-node-does). A machine's own metrics, without a run:
`python -m hetero_hvd.probes.machine.node_metrics --node NAME --port PORT`, or its
[agent](../guide/discovery.md). A node whose newest sample is older than 10 s (or three times
`sample_seconds`) is absent.

The dashboards and alerts on GPUs take the rules' series `gpu:hetero_hvd_…`: of each GPU one value,
whoever has told of it: the driver, an agent, or else a dcgm-exporter that Prometheus scrapes
(`DCGM_FI_DEV_*` and `DCGM_FI_PROF_DRAM_ACTIVE`, with its labels `Hostname`, `gpu` and `UUID`).

A scraper that asks for OpenMetrics by its Accept header gets that, with exemplars; Prometheus does.
[Dashboards and alerts](../operations/monitoring.md) has the files for Prometheus, Alertmanager and
Grafana, by one command for all runs of a machine or a cluster: `hetero-hvd deploy monitoring`.
`/sd` lists the nodes whose [agent](../guide/discovery.md) serves metrics; add other exporters to
prometheus.yml.

Each run has its own `run_id`: the name of its folder and eight random digits. The exporter puts it
on all series of the run; how it is found adds the label `run`, that name. At the end of a run the
driver waits for one more scrape, if somebody has scraped regularly: then `run_active` is 0. So does
rank 0 without a driver, for 10 s at most. A series of it that stops at 1 belongs to one that was
killed or cannot be reached, and `HeteroHvdDriverLost` fires.
"""


def reference() -> str:
    """The page docs/reference/metrics.md."""
    parts = [
        HEAD,
        _table("Run and workers, from the driver (label `run_id` on all)", (*RUN, *WORKER)),
        _table("Of `hetero-hvd export` alone, whose other names are the same", EXPORTED),
        _table("The queue of a hub, from its `/metrics`", QUEUE),
        _table("Nodes, from the driver and from a node's exporter (label `node` on all)", NODE),
        _table("Their GPUs (labels `node`, `device` and `uuid` on all)", DEVICE),
    ]
    return "\n".join(parts)


def _table(title: str, names: tuple[MetricName, ...]) -> str:
    lines = [f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
    for entry in names:
        labels = ", ".join(f"`{label}`" for label in entry.labels)
        lines.append(f"| `{entry.exported}` | {entry.kind} | {labels} | {entry.doc} |")
    return "\n".join(lines) + "\n"
