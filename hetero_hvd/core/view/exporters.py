"""What exporters for Prometheus call the figures of a sample, and in which units they tell them.

NVIDIA's dcgm-exporter (its `etc/default-counters.csv`, and DCGM's list of field identifiers), the
node exporter of Prometheus, and our own. What is outside its range is no figure: DCGM tells what it
does not know as a number beyond all ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

MIB = 2.0**20
MANY = 1e15
"""More bytes, joules or hertz than a machine has, and less than DCGM's "not known", 2^63 - 16, is
in any of these units."""

Family = Literal["dcgm", "node", "own-gpu", "own-node"]


class ExportedFigure(NamedTuple):
    """A figure of an exporter.

    Attributes:
        family: Whose.
        field: Of a `DeviceSample` or a `NodeSampled`.
        query: In PromQL; see `query_of`.
        factor: From its unit to that of the field.
        most: The largest value that the field may have.
    """

    family: Family
    field: str
    query: str
    factor: float = 1.0
    most: float = MANY


PROBES: dict[Family, tuple[str, ...]] = {
    "dcgm": ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"),
    "node": ("node_load1", "node_memory_MemTotal_bytes"),
    "own-gpu": ("hetero_hvd_gpu_use_ratio", "hetero_hvd_gpu_memory_used_bytes"),
    "own-node": ("hetero_hvd_node_cpu_use_ratio", "hetero_hvd_node_memory_used_bytes"),
}
"""Metrics that an exporter tells once for each device or node: one of them at least. What
dcgm-exporter tells is chosen in a file."""

NODE_NAMES = "node_uname_info"
"""Of the node exporter: `nodename` and `instance`."""

QUEUE_WAITS = "hetero_hvd_queue_longest_wait_seconds"
"""Of our hub, for each `pool`: how long the job that waits longest has waited."""

NODE_LABELS = ("Hostname", "node", "kubernetes_node", "instance")
"""Where an exporter names its node; the first one that there is."""

GPU_LABELS = ("gpu", "device")
MAX_DIGITS = 4
"""Of a GPU's index; a longer one is something else."""

INSTANCE_LABEL = "GPU_I_ID"
"""Of a part of a GPU (MIG)."""

_OTHER_INTERFACES = (
    "lo|veth.*|docker.*|br-.*|virbr.*|cni.*|cali.*|flannel.*|cilium.*|lxc.*|tun.*|tap.*|vxlan.*|wg.*"
    "|bond.*|team.*|vlan.*|.+[.][0-9]+"
)
"""What goes through them goes through the machine's own, too, or stays on it."""

_OTHER_DISKS = "loop.*|ram.*|dm-.*|md.*"


def _now(metric: str, more: str = "") -> str:
    """The value that was scraped last within the window; a value from before is not held."""
    return f"last_over_time({metric}{{{more}$select}}[$window])"


def _rate(metric: str, more: str = "") -> str:
    """The rate from the last scrape but one to the last, of all series of a node together."""
    return f"sum without (device, cpu, mode, index, path) (irate({metric}{{{more}$select}}[$two]))"


def _dcgm(name: str, field: str, factor: float = 1.0, most: float = MANY) -> ExportedFigure:
    return ExportedFigure("dcgm", field, _now(f"DCGM_FI_{name}"), factor, most)


def _node(field: str, query: str, most: float = MANY) -> ExportedFigure:
    return ExportedFigure("node", field, query, 1.0, most)


def _own(family: Family, field: str, metric: str, more: str = "") -> ExportedFigure:
    return ExportedFigure(family, field, _now(f"hetero_hvd_{metric}", more))


FIGURES: tuple[ExportedFigure, ...] = (
    _dcgm("DEV_GPU_UTIL", "use_ratio", 0.01, 1.0),
    _dcgm("PROF_GR_ENGINE_ACTIVE", "use_ratio", 1.0, 1.0),
    _dcgm("DEV_FB_USED", "memory_used_bytes", MIB, 2.0**44),
    _dcgm("DEV_FB_TOTAL", "memory_total_bytes", MIB, 2.0**44),
    _dcgm("DEV_FB_FREE", "memory_free_bytes", MIB, 2.0**44),
    _dcgm("DEV_GPU_TEMP", "temperature_celsius", 1.0, 300.0),
    _dcgm("DEV_POWER_USAGE", "power_watts", 1.0, 1e5),
    _dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules", 1e-3),
    _dcgm("DEV_SM_CLOCK", "sm_clock_hertz", 1e6, 1e11),
    _dcgm("DEV_MEM_CLOCK", "memory_clock_hertz", 1e6, 1e11),
    _dcgm("PROF_DRAM_ACTIVE", "dram_active_ratio", 1.0, 1.0),
    _dcgm("PROF_PCIE_RX_BYTES", "pcie_received_bytes_per_second", 1.0, 1e13),
    _dcgm("PROF_PCIE_TX_BYTES", "pcie_sent_bytes_per_second", 1.0, 1e13),
    _dcgm("PROF_NVLINK_RX_BYTES", "nvlink_received_bytes_per_second", 1.0, 1e13),
    _dcgm("PROF_NVLINK_TX_BYTES", "nvlink_sent_bytes_per_second", 1.0, 1e13),
    _node(
        "cpu_use_ratio",
        '1 - avg without (cpu, mode) (sum without (mode) (irate(node_cpu_seconds_total{mode=~"idle|'
        'iowait",$select}[$two])))',
        1.0,
    ),
    _node("load", _now("node_load1")),
    _node("memory_total_bytes", _now("node_memory_MemTotal_bytes")),
    _node("memory_free_bytes", _now("node_memory_MemAvailable_bytes")),
    *(
        _node(
            f"network_{field}_bytes_per_second",
            _rate(f"node_network_{name}_bytes_total", f'device!~"{_OTHER_INTERFACES}",'),
        )
        for field, name in (("received", "receive"), ("sent", "transmit"))
    ),
    *(
        _node(
            f"disk_{field}_bytes_per_second",
            _rate(f"node_disk_{name}_bytes_total", f'device!~"{_OTHER_DISKS}",'),
        )
        for field, name in (("read", "read"), ("written", "written"))
    ),
    _node("package_power_watts", _rate("node_rapl_package_joules_total")),
    *(
        _own("own-gpu", field, f"gpu_{field}")
        for field in (
            "use_ratio",
            "memory_used_bytes",
            "memory_total_bytes",
            "temperature_celsius",
            "power_watts",
            "dram_active_ratio",
        )
    ),
    _own("own-gpu", "energy_joules", "gpu_energy_joules_total"),
    *(
        _own(
            "own-gpu", f"nvlink_{field}_bytes_per_second", "gpu_nvlink_bytes_per_second",
            f'direction="{name}",',
        )
        for field, name in (("received", "receive"), ("sent", "transmit"))
    ),
    *(
        _own("own-node", field, f"node_{field}")
        for field in ("cpu_use_ratio", "load", "memory_used_bytes", "memory_total_bytes")
    ),
    *(
        _own(
            "own-node", f"network_{field}_bytes_per_second", "node_network_bytes_per_second",
            f'direction="{name}",',
        )
        for field, name in (("received", "receive"), ("sent", "transmit"))
    ),
    *(
        _own(
            "own-node", f"disk_{field}_bytes_per_second", "node_disk_bytes_per_second",
            f'direction="{name}",',
        )
        for field, name in (("read", "read"), ("written", "write"))
    ),
    _own("own-node", "package_power_watts", "node_package_power_watts"),
    _own("own-node", "package_energy_joules", "node_package_energy_joules_total"),
)  # fmt: skip
"""Of two that tell the same field of a device, the first one counts."""

FREE = "memory_free_bytes"
"""Of no sample: what is used and what is free are all there is, where that is not told."""


def query_of(query: str, select: str, every_seconds: float) -> str:
    """A query with label matchers and with windows for one, and for two, scrapes.

    Args:
        query: With `$select`, `$window` and `$two`.
        select: Matchers such as `cluster="a"`; empty: none.
        every_seconds: Between two scrapes.
    """
    windows = {"$window": every_seconds, "$two": 2.5 * every_seconds}
    for name, seconds in windows.items():
        query = query.replace(name, f"{round(1000 * seconds)}ms")
    return query.replace("$select", select)


def in_field(figure: ExportedFigure, value: float) -> float:
    """A value in the unit of its field; NaN: outside its range, so it is none."""
    found = value * figure.factor
    return found if 0.0 <= found <= figure.most else math.nan


def node_of(labels: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The node that a series is of; empty: it does not tell.

    Args:
        labels: Of the series.
        names: `instance` of a node exporter to the name of its node.
    """
    for label in NODE_LABELS:
        if value := labels.get(label, ""):
            if label != "instance":
                return value
            return names.get(value) or value.rpartition(":")[0] or value
    return ""


def gpu_of(labels: Mapping[str, str]) -> int | None:
    """The index of the GPU that a series is of; None: it does not tell."""
    for label in GPU_LABELS:
        digits = labels.get(label, "").removeprefix("nvidia")
        if digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS:
            return int(digits)
    return None
