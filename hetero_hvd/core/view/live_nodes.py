"""What nodes and their GPUs do now, and for whom, as the page and `top` show it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from hetero_hvd.core.view.quality import finite
from hetero_hvd.messages import DeviceSample, NodeSampled

MIN_AGE_SECONDS = 10.0
MISSED_SAMPLES = 3
"""After as many, and after that time, the newest one says nothing about now."""


class DeviceView(msgspec.Struct, kw_only=True):
    """One GPU; None: not told.

    Attributes:
        index: As its driver counts.
        uuid: Identity.
        name: Product name.
        use_ratio: Part of the time in which a kernel ran.
        memory_used_bytes: By all processes.
        memory_total_bytes: All of it.
        temperature_celsius: Of the chip.
        power_watts: Drawn by the board.
        held_back: Why its clock is held down, and errors of its driver, in words.
        used_by: Who uses it, in words.
    """

    index: int
    uuid: str
    name: str
    use_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    held_back: list[str] = msgspec.field(default_factory=list)
    used_by: list[str] = msgspec.field(default_factory=list)


class NodeView(msgspec.Struct, kw_only=True):
    """One node; None: not told.

    Attributes:
        name: In the job.
        cpu_use_ratio: Part of all processors' time that was used.
        memory_used_bytes: That cannot be had without swapping.
        memory_total_bytes: All of it.
        network_received_bytes_per_second: Without loopback.
        network_sent_bytes_per_second: Without loopback.
        temperature_celsius: Of a processor.
        power_watts: Of its processors' packages.
        devices: Its GPUs, by index.
    """

    name: str
    cpu_use_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    network_received_bytes_per_second: float | None = None
    network_sent_bytes_per_second: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    devices: list[DeviceView] = msgspec.field(default_factory=list)


class NodesView:
    """Keeps the newest sample of each node, as long as it says something about now."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[float, float, NodeView]] = {}

    def sampled(self, at_unix_seconds: float, sample: NodeSampled) -> None:
        """A node was sampled.

        Args:
            at_unix_seconds: When it was heard of.
            sample: What it does.
        """
        before, _, _ = self._nodes.get(sample.node, (math.nan, 0.0, None))
        gap_seconds = at_unix_seconds - before
        age_seconds = MISSED_SAMPLES * (gap_seconds if gap_seconds > 0 else 0.0)
        until = at_unix_seconds + max(MIN_AGE_SECONDS, age_seconds)
        self._nodes[sample.node] = (at_unix_seconds, until, _node(sample))

    def at(self, now_unix_seconds: float) -> list[NodeView]:
        """The nodes by name, without those that were not heard of for too long."""
        found = sorted(self._nodes.items())
        return [view for _, (_, until, view) in found if now_unix_seconds <= until]


def users_in_words(sample: NodeSampled) -> Iterator[str]:
    """One line for each process on a GPU, and for each GPU of which none is told."""
    for gpu in sample.devices:
        for user in gpu.used_by:
            yield f"gpu {gpu.index}: {user}"
        if not gpu.used_by:
            yield f"gpu {gpu.index}: no process seen"


def _node(sample: NodeSampled) -> NodeView:
    return NodeView(
        name=sample.node,
        cpu_use_ratio=finite(sample.cpu_use_ratio),
        memory_used_bytes=finite(sample.memory_used_bytes),
        memory_total_bytes=finite(sample.memory_total_bytes),
        network_received_bytes_per_second=finite(sample.network_received_bytes_per_second),
        network_sent_bytes_per_second=finite(sample.network_sent_bytes_per_second),
        temperature_celsius=finite(sample.cpu_temperature_celsius),
        power_watts=finite(sample.package_power_watts),
        devices=[_device(gpu) for gpu in sample.devices],
    )


def _device(gpu: DeviceSample) -> DeviceView:
    errors = [f"XID {gpu.xid}"] if gpu.xid else []
    return DeviceView(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        use_ratio=finite(gpu.use_ratio),
        memory_used_bytes=finite(gpu.memory_used_bytes),
        memory_total_bytes=finite(gpu.memory_total_bytes),
        temperature_celsius=finite(gpu.temperature_celsius),
        power_watts=finite(gpu.power_watts),
        held_back=[*gpu.throttle_reasons, *errors],
        used_by=list(map(str, gpu.used_by)),
    )
