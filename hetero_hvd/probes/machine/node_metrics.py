"""Nodes and their GPUs as Prometheus metrics, from their newest samples.

`python -m hetero_hvd.probes.machine.node_metrics --node NAME --port PORT` serves those of this
machine.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hetero_hvd.core.view.metric_names import PREFIX, MetricName
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE, device_values, node_values
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.sampling.local_samples import NewestSamples, follow_samples

Newest = Callable[[], Iterable[NodeSampled]]
"""Gives the newest sample of each node."""

NODE_LABELS = ("node",)
DEVICE_LABELS = ("node", "device", "uuid")


def node_registry(newest: Newest, run_id: str | None = None) -> CollectorRegistry:
    """A registry with the metrics of nodes.

    Args:
        newest: See `Newest`.
        run_id: Of the run that the exporter belongs to; None: it outlives runs.
    """
    registry = CollectorRegistry()
    registry.register(NodeCollector(newest, {"run_id": run_id} if run_id else {}))
    return registry


def node_page(newest: Newest) -> tuple[str, Callable[[], bytes]]:
    """The same as a page: its content type, and what makes it anew at each call."""
    registry = node_registry(newest)
    return CONTENT_TYPE_LATEST, lambda: generate_latest(registry)


class NodeCollector(Collector):
    """Makes families of the newest samples at each scrape; what is not told is absent.

    Args:
        newest: See `Newest`.
        own: Further labels, and their values.
    """

    def __init__(self, newest: Newest, own: Mapping[str, str]) -> None:
        self._newest = newest
        self._own = own

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no samples."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        samples = list(self._newest())
        own = tuple(self._own.values())
        for entry in NODE:
            family = self._family(entry, NODE_LABELS)
            for sample in samples:
                for labels, value in node_values(entry, sample).items():
                    family.add_metric((*own, sample.node, *labels), value)
            if family.samples:
                yield family
        for entry in DEVICE:
            family = self._family(entry, DEVICE_LABELS)
            for sample in samples:
                for gpu in sample.devices:
                    known = (*own, sample.node, str(gpu.index), gpu.uuid)
                    for labels, value in device_values(entry, gpu).items():
                        family.add_metric((*known, *labels), value)
            if family.samples:
                yield family

    def _family(
        self, entry: MetricName, labels: tuple[str, ...]
    ) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
        return kind(PREFIX + entry.name, entry.doc, labels=[*self._own, *labels, *entry.labels])


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="hetero_hvd.probes.machine.node_metrics")
    parser.add_argument("--node", required=True)
    parser.add_argument("--run-id")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    arguments = parser.parse_args()
    newest = NewestSamples()
    follow_samples(arguments.node, newest.take, say=logging.warning)
    start_http_server(
        arguments.port,
        arguments.address,
        node_registry(newest, arguments.run_id),
        certfile=arguments.certificate,
        keyfile=arguments.key,
    )
    threading.Event().wait()


if __name__ == "__main__":
    main()
