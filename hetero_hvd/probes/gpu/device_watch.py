"""What a GPU tells only to who keeps watching: errors as they happen, activity between two looks.

NVML is handed in by its one door, `probes.gpu.nvml`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

MAX_EVENTS = 64
"""Of one look: a GPU in trouble may report without end."""


class WatchedDevice(NamedTuple):
    """What was seen of one GPU.

    Attributes:
        xid: Number of the newest error that its driver has reported since the watch began; 0: none.
        xids: Number of each error to how often it was reported since then.
        dram_active_ratio: Part of the time since the look before in which its memory's interface
            moved data, 0 to 1; NaN: not told.
    """

    xid: int
    xids: dict[int, int]
    dram_active_ratio: float = math.nan


class DeviceWatch:
    """Watches the GPUs as long as the library is open.

    Args:
        nvml: The module, with the library open.
    """

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - pynvml has no types
        self._nvml = nvml
        self._events: dict[str, Any] = {}
        self._errors: dict[str, tuple[int, dict[int, int]]] = {}
        self._activity: dict[str, Any] = {}

    def look(self, uuid: str, handle: Any) -> WatchedDevice:  # noqa: ANN401
        """What has happened to a GPU since the look before; the first one begins the watch."""
        xid, xids = self._look_for_errors(uuid, handle)
        return WatchedDevice(
            xid=xid, xids=xids, dram_active_ratio=self._memory_activity(uuid, handle)
        )

    def _look_for_errors(self, uuid: str, handle: Any) -> tuple[int, dict[int, int]]:  # noqa: ANN401
        nvml = self._nvml
        xid, before = self._errors.get(uuid, (0, {}))
        xids = before.copy()
        try:
            if uuid not in self._events:
                self._events[uuid] = None
                events = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                self._events[uuid] = events
            for _ in range(MAX_EVENTS if self._events[uuid] is not None else 0):
                event = nvml.nvmlEventSetWait_v2(self._events[uuid], 0)
                xid = int(event.eventData)
                xids[xid] = xids.get(xid, 0) + 1
        except nvml.NVMLError:  # there are no more, or this GPU has none
            pass
        self._errors[uuid] = (xid, xids)
        return xid, xids

    def _memory_activity(self, uuid: str, handle: Any) -> float:  # noqa: ANN401
        """From the GPU's performance monitors, which those of the Hopper generation and later have.

        Before this they are for an administrator's profiler alone, and not told here.
        """
        nvml = self._nvml
        try:
            if uuid not in self._activity:
                self._activity[uuid] = None
                if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                    pair = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
                    nvml.nvmlGpmSampleGet(handle, pair[1])
                    self._activity[uuid] = pair
                return math.nan
            pair = self._activity[uuid]
            if pair is None:
                return math.nan
            pair.reverse()
            nvml.nvmlGpmSampleGet(handle, pair[1])
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
            asked.numMetrics = 1
            asked.sample1, asked.sample2 = pair
            asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
            found = nvml.nvmlGpmMetricsGet(asked).metrics[0]
        except nvml.NVMLError:
            return math.nan
        return found.value / 100 if found.nvmlReturn == nvml.NVML_SUCCESS else math.nan
