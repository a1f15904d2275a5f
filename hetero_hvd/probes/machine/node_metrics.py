"""This machine as Prometheus metrics: read when somebody scrapes, and only then.

`python -m hetero_hvd.probes.machine.node_metrics --node NAME --port PORT` serves them.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psutil
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hetero_hvd.core.view.metric_names import NODE
from hetero_hvd.probes.gpu.device_metrics import CHOICES, Choice, device_families, take_samples

CPU_MODES = ("user", "system", "idle", "iowait", "nice", "irq", "softirq", "steal")


def node_registry(
    node_name: str, run_id: str | None = None, *, devices: Choice = "auto"
) -> CollectorRegistry:
    """A registry with this machine's metrics.

    Args:
        node_name: Value of the label `node`.
        run_id: Of the run that the exporter belongs to; None: it outlives runs.
        devices: Whether to tell of GPUs; `auto`: unless dcgm-exporter does.
    """
    registry = CollectorRegistry()
    registry.register(NodeCollector(node_name, run_id, devices=devices))
    return registry


def node_page(node_name: str) -> tuple[str, Callable[[], bytes]]:
    """The same as a page: its content type, and what makes it anew at each call."""
    registry = node_registry(node_name)
    return CONTENT_TYPE_LATEST, lambda: generate_latest(registry)


class NodeCollector(Collector):
    """Reads the machine at each scrape; a source that fails is counted and absent.

    Args:
        node_name: See `node_registry`.
        run_id: See `node_registry`.
        devices: See `node_registry`.
    """

    def __init__(
        self, node_name: str, run_id: str | None = None, *, devices: Choice = "auto"
    ) -> None:
        self._devices = devices
        self._own = {"node": node_name} | ({"run_id": run_id} if run_id else {})
        self._sources: dict[str, Callable[[], dict[str, float]]] = {
            "node_cpu_seconds": _cpu,
            "node_network_bytes": _network,
            "node_disk_bytes": _disk,
        }
        self._errors: Counter[str] = Counter()

    def describe(self) -> list[Metric]:
        """Nothing: so that registering does not read the machine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        start = time.monotonic()
        values: dict[str, dict[str, float]] = {}
        for name, read in self._sources.items():
            try:
                values[name] = read()
            except (OSError, psutil.Error, AttributeError):  # psutil's, where a system lacks it
                self._errors[name] += 1
        gpus = take_samples(self._devices, lambda _: self._errors.update(["device"]))
        seconds = time.monotonic() - start
        values["agent_collect_duration_seconds"] = {"": seconds}
        values["agent_collect_errors"] = {
            name: self._errors[name] for name in (*self._sources, "device")
        }
        for entry in NODE:
            kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
            family = kind(f"hetero_hvd_{entry.name}", entry.doc, labels=[*self._own, *entry.labels])
            for label, value in values.get(entry.name, {}).items():
                family.add_metric([*self._own.values(), *([label] if entry.labels else [])], value)
            if family.samples:
                yield family
        yield from device_families(self._own, gpus)


def _cpu() -> dict[str, float]:
    times = psutil.cpu_times()
    return {mode: getattr(times, mode) for mode in CPU_MODES if hasattr(times, mode)}


def _network() -> dict[str, float]:
    cards = psutil.net_io_counters(pernic=True, nowrap=True)
    real = [card for name, card in cards.items() if name != "lo"]
    return {
        "receive": sum(card.bytes_recv for card in real),
        "transmit": sum(card.bytes_sent for card in real),
    }


def _disk() -> dict[str, float]:
    disks = psutil.disk_io_counters(nowrap=True)
    return {"read": disks.read_bytes, "write": disks.write_bytes} if disks else {}


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="hetero_hvd.probes.machine.node_metrics")
    parser.add_argument("--node", required=True)
    parser.add_argument("--run-id")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--devices", choices=CHOICES, default="auto")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    arguments = parser.parse_args()
    start_http_server(
        arguments.port,
        arguments.address,
        node_registry(arguments.node, arguments.run_id, devices=arguments.devices),
        certfile=arguments.certificate,
        keyfile=arguments.key,
    )
    threading.Event().wait()


if __name__ == "__main__":
    main()
