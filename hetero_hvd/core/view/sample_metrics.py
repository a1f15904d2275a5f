"""The figures of a node's sample by the names of their metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hetero_hvd.core.view.metric_names import MetricName
from hetero_hvd.messages import DeviceSample, NodeSampled

Values = Mapping[tuple[str, ...], float]
"""Values of a metric's own labels to its value."""


def _one(value: float) -> Values:
    return {(): value}


def _both(received: float, sent: float) -> Values:
    return {("receive",): received, ("transmit",): sent}


_NODE: dict[MetricName, Callable[[NodeSampled], Values]] = {
    MetricName("node_cpu_use_ratio", "gauge", "Part of all processors' time that was used."): (
        lambda node: _one(node.cpu_use_ratio)
    ),
    MetricName("node_load", "gauge", "Processes that ran or waited, mean over a minute."): (
        lambda node: _one(node.load)
    ),
    MetricName("node_memory_used_bytes", "gauge", "That cannot be had without swapping."): (
        lambda node: _one(node.memory_used_bytes)
    ),
    MetricName("node_memory_total_bytes", "gauge", "All of its memory."): (
        lambda node: _one(node.memory_total_bytes)
    ),
    MetricName(
        "node_network_bytes_per_second", "gauge", "Without loopback.", ("direction",)
    ): lambda node: _both(
        node.network_received_bytes_per_second, node.network_sent_bytes_per_second
    ),
    MetricName("node_disk_bytes_per_second", "gauge", "Of all disks.", ("direction",)): (
        lambda node: {
            ("read",): node.disk_read_bytes_per_second,
            ("write",): node.disk_written_bytes_per_second,
        }
    ),
    MetricName("node_package_power_watts", "gauge", "Of all processor packages (RAPL)."): (
        lambda node: _one(node.package_power_watts)
    ),
    MetricName("node_package_energy_joules", "counter", "The same, since sampling began."): (
        lambda node: _one(node.package_energy_joules)
    ),
    MetricName("node_cpu_temperature_celsius", "gauge", "Of the hottest sensor."): (
        lambda node: _one(node.cpu_temperature_celsius)
    ),
    MetricName("node_sample_timestamp_seconds", "gauge", "When, by the node's clock."): (
        lambda node: _one(node.at_unix_seconds)
    ),
    MetricName("node_sample_duration_seconds", "gauge", "Time that taking the sample took."): (
        lambda node: _one(node.took_seconds)
    ),
    MetricName("node_sample_problems", "gauge", "Things that could not be asked."): (
        lambda node: _one(len(node.problems))
    ),
}
_DEVICE: dict[MetricName, Callable[[DeviceSample], Values]] = {
    MetricName("gpu_info", "gauge", "Always 1.", ("model",)): lambda gpu: {(gpu.name,): 1.0},
    MetricName("gpu_use_ratio", "gauge", "Part of the time a kernel ran."): (
        lambda gpu: _one(gpu.use_ratio)
    ),
    MetricName("gpu_processes", "gauge", "That use it."): lambda gpu: _one(len(gpu.used_by)),
    MetricName("gpu_memory_used_bytes", "gauge", "By all processes."): (
        lambda gpu: _one(gpu.memory_used_bytes)
    ),
    MetricName("gpu_memory_total_bytes", "gauge", "All of its memory."): (
        lambda gpu: _one(gpu.memory_total_bytes)
    ),
    MetricName("gpu_temperature_celsius", "gauge", "Of the chip."): (
        lambda gpu: _one(gpu.temperature_celsius)
    ),
    MetricName("gpu_power_watts", "gauge", "Drawn by the board."): (
        lambda gpu: _one(gpu.power_watts)
    ),
    MetricName("gpu_energy_joules", "counter", "Since its driver was loaded."): (
        lambda gpu: _one(gpu.energy_joules)
    ),
    MetricName("gpu_clock_hertz", "gauge", "Of `sm` and `memory`.", ("clock",)): (
        lambda gpu: {("sm",): gpu.sm_clock_hertz, ("memory",): gpu.memory_clock_hertz}
    ),
    MetricName("gpu_throttled", "gauge", "1 while the clock is held down.", ("reason",)): (
        lambda gpu: {(reason,): 1.0 for reason in gpu.throttle_reasons}
    ),
    MetricName(
        "gpu_throttled_seconds",
        "counter",
        "Time for which the clock was held down since its driver was loaded.",
        ("reason",),
    ): lambda gpu: {(reason,): value for reason, value in gpu.throttled_seconds.items()},
    MetricName("gpu_pcie_bytes_per_second", "gauge", "Over 20 ms.", ("direction",)): (
        lambda gpu: _both(gpu.pcie_received_bytes_per_second, gpu.pcie_sent_bytes_per_second)
    ),
    MetricName("gpu_nvlink_bytes_per_second", "gauge", "Over all links.", ("direction",)): (
        lambda gpu: _both(gpu.nvlink_received_bytes_per_second, gpu.nvlink_sent_bytes_per_second)
    ),
    MetricName("gpu_dram_active_ratio", "gauge", "Part of the time its memory moved data."): (
        lambda gpu: _one(gpu.dram_active_ratio)
    ),
    MetricName(
        "gpu_errors",
        "counter",
        "Of its memory (ECC), PCIe replays, of its driver.",
        ("kind",),
    ): lambda gpu: {
        ("ecc_corrected",): gpu.ecc_corrected,
        ("ecc_uncorrected",): gpu.ecc_uncorrected,
        ("pcie_replay",): gpu.pcie_replays,
        ("xid",): gpu.num_xids,
    },
    MetricName("gpu_xid", "gauge", "Number of its newest error; absent: none."): (
        lambda gpu: _one(gpu.xid or math.nan)
    ),
}
NODE = tuple(_NODE)
"""Of a node's sample."""

DEVICE = tuple(_DEVICE)
"""Of each of its GPUs; these have the labels `device`, its index, and `uuid` as well."""


def node_values(entry: MetricName, sample: NodeSampled) -> Values:
    """The values of one of `NODE`; what is not told is left out."""
    return _told(_NODE[entry](sample))


def device_values(entry: MetricName, sample: DeviceSample) -> Values:
    """The values of one of `DEVICE`; what is not told is left out."""
    return _told(_DEVICE[entry](sample))


def _told(values: Values) -> Values:
    return {labels: value for labels, value in values.items() if math.isfinite(value)}
