"""What this machine's GPUs do, and for whom: readings of their driver as samples with rates."""

from __future__ import annotations

import math

from hetero_hvd.messages import DeviceSample
from hetero_hvd.probes.gpu.device_users import DeviceUsers
from hetero_hvd.probes.gpu.device_watch import WatchedDevice
from hetero_hvd.probes.gpu.gpu_records import GpuSample
from hetero_hvd.probes.gpu.nvml import GpuWatch

IDLE = "idle"
"""A reason for a low clock that holds nobody back."""


class DeviceMeter:
    """Asks the driver, and makes rates of its counters."""

    def __init__(self) -> None:
        self._watch = GpuWatch()
        self._users = DeviceUsers()
        self._links: dict[str, tuple[float, dict[str, float]]] = {}

    def take(self, now_seconds: float) -> tuple[tuple[DeviceSample, ...], list[str]]:
        """Samples by index, and what could not be asked.

        Args:
            now_seconds: Monotonic.
        """
        found, problems = self._watch.take()
        self._users.forget_others({pid for gpu, _ in found for pid in gpu.processes})
        samples = tuple(self._sample(gpu, watched, now_seconds) for gpu, watched in found)
        return samples, problems

    def _sample(self, gpu: GpuSample, watched: WatchedDevice, now_seconds: float) -> DeviceSample:
        links = self._link_rates(gpu, now_seconds)
        return DeviceSample(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            use_ratio=_or_nan(gpu.utilization_ratio),
            memory_used_bytes=_or_nan(gpu.memory_used_bytes),
            memory_total_bytes=_or_nan(gpu.memory_total_bytes),
            temperature_celsius=_or_nan(gpu.temperature_celsius),
            power_watts=_or_nan(gpu.power_watts),
            energy_joules=_or_nan(gpu.energy_joules),
            sm_clock_hertz=_or_nan(gpu.clock_hertz),
            memory_clock_hertz=_or_nan(gpu.memory_clock_hertz),
            throttle_reasons=tuple(reason for reason in gpu.throttle_reasons if reason != IDLE),
            throttled_seconds=gpu.throttled_seconds,
            pcie_received_bytes_per_second=gpu.pcie_bytes_per_second.get("receive", math.nan),
            pcie_sent_bytes_per_second=gpu.pcie_bytes_per_second.get("transmit", math.nan),
            nvlink_received_bytes_per_second=links.get("receive", math.nan),
            nvlink_sent_bytes_per_second=links.get("transmit", math.nan),
            dram_active_ratio=watched.dram_active_ratio,
            ecc_corrected=gpu.errors.get("ecc_corrected", math.nan),
            ecc_uncorrected=gpu.errors.get("ecc_uncorrected", math.nan),
            pcie_replays=gpu.errors.get("pcie_replay", math.nan),
            xid=watched.xid,
            num_xids=sum(watched.xids.values()),
            xids=watched.xids,
            used_by=self._users.who(gpu.processes),
        )

    def _link_rates(self, gpu: GpuSample, now_seconds: float) -> dict[str, float]:
        before_seconds, before = self._links.get(gpu.uuid, (math.nan, {}))
        self._links[gpu.uuid] = (now_seconds, gpu.nvlink_bytes)
        seconds = now_seconds - before_seconds
        if not seconds > 0:
            return {}
        changes = {way: now - before.get(way, math.nan) for way, now in gpu.nvlink_bytes.items()}
        return {way: change / seconds for way, change in changes.items() if change >= 0}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
