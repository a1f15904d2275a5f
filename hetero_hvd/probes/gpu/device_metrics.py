"""This machine's GPUs as Prometheus metrics, unless dcgm-exporter tells of them already."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hetero_hvd.core.view.metric_names import DEVICE, PREFIX
from hetero_hvd.probes.gpu.gpu_records import GpuSample
from hetero_hvd.probes.gpu.nvml import sample

Choice = Literal["auto", "always", "never"]
CHOICES: tuple[Choice, ...] = ("auto", "always", "never")
DCGM_PORT = 9400
"""Where dcgm-exporter listens unless told otherwise."""

_CONNECT_SECONDS = 0.2

_VALUES: dict[str, Callable[[GpuSample], Mapping[str, float | None]]] = {
    "device_info": lambda gpu: {gpu.name: 1.0},
    "device_utilization_ratio": lambda gpu: {"": gpu.utilization_ratio},
    "device_memory_used_bytes": lambda gpu: {"": gpu.memory_used_bytes},
    "device_memory_total_bytes": lambda gpu: {"": gpu.memory_total_bytes},
    "device_temperature_celsius": lambda gpu: {"": gpu.temperature_celsius},
    "device_power_watts": lambda gpu: {"": gpu.power_watts},
    "device_energy_joules": lambda gpu: {"": gpu.energy_joules},
    "device_clock_hertz": lambda gpu: {"": gpu.clock_hertz},
    "device_throttled_seconds": lambda gpu: gpu.throttled_seconds,
    "device_pcie_bytes_per_second": lambda gpu: gpu.pcie_bytes_per_second,
    "device_nvlink_bytes": lambda gpu: gpu.nvlink_bytes,
    "device_errors": lambda gpu: gpu.errors,
}
"""Name to values of its own label; the key is empty where it has none."""


def take_samples(choice: Choice, on_failure: Callable[[str], None]) -> list[GpuSample]:
    """What the GPUs do now; empty where somebody else tells, or nobody shall.

    Args:
        choice: `auto`: unless dcgm-exporter is here; `always`; `never`.
        on_failure: Called once with each reason for which a GPU, or a field of one, is absent.
    """
    if choice == "never" or (choice == "auto" and is_dcgm_here()):
        return []
    samples = sample(on_failure)
    for gpu in samples:
        for problem in gpu.problems:
            on_failure(problem)
    return samples


def is_dcgm_here(port: int = DCGM_PORT) -> bool:
    """Whether something listens on the port of dcgm-exporter on this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def device_families(own: Mapping[str, str], samples: Sequence[GpuSample]) -> Iterator[Metric]:
    """The families of the samples; what is unknown is absent.

    Args:
        own: Labels of the node, and their values.
        samples: One for each GPU.
    """
    for entry in DEVICE:
        kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
        family = kind(PREFIX + entry.name, entry.doc, labels=[*own, *entry.labels])
        for gpu in samples:
            for label, value in _VALUES[entry.name](gpu).items():
                if value is not None:
                    labels = [*own.values(), gpu.uuid, *([label] if label else [])]
                    family.add_metric(labels, value)
        if family.samples:
            yield family
