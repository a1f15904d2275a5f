"""One sample of this node after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from hetero_hvd.core.significant import significant
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.probes.gpu.device_meter import DeviceMeter
from hetero_hvd.probes.machine.machine_meter import MachineMeter

_RATE = "_per_second"
DEVICE_MEANS = tuple(name for name in DeviceSample.__struct_fields__ if name.endswith(_RATE))
NODE_MEANS = (
    "seconds",
    "took_seconds",
    "cpu_use_ratio",
    "package_power_watts",
    *(name for name in NodeSampled.__struct_fields__ if name.endswith(_RATE)),
)


class NodeSampler:
    """Takes samples of the machine and its GPUs; rates are means between two calls.

    Args:
        clock: Monotonic, seconds.
        wall_clock: Seconds since 1970; it may jump, nothing follows from it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._machine = MachineMeter()
        self._devices = DeviceMeter()
        self._before_seconds = math.nan

    def take(self) -> NodeSampled:
        """The next sample; what cannot be asked is NaN or empty, and named in `problems`."""
        now_seconds = self._clock()
        seconds = now_seconds - self._before_seconds
        self._before_seconds = now_seconds
        seconds = seconds if seconds > 0 else math.nan
        figures, problems = self._machine.take(seconds)
        devices: tuple[DeviceSample, ...] = ()
        try:
            devices, of_devices = self._devices.take(now_seconds)
            problems += of_devices
        except Exception as error:  # noqa: BLE001 - a driver's library may do anything
            problems.append(f"GPUs: {error!r}")
        sample = NodeSampled(
            at_unix_seconds=self._wall_clock(),
            seconds=seconds,
            took_seconds=self._clock() - now_seconds,
            devices=devices,
            problems=tuple(problems),
        )
        return _without_noise(msgspec.structs.replace(sample, **figures))


def _without_noise(sample: NodeSampled) -> NodeSampled:
    """Means over a time that is measured are rounded to what is known of them."""
    devices = tuple(
        msgspec.structs.replace(gpu, **_rounded(gpu, DEVICE_MEANS)) for gpu in sample.devices
    )
    return msgspec.structs.replace(sample, devices=devices, **_rounded(sample, NODE_MEANS))


def _rounded(sample: NodeSampled | DeviceSample, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: significant(getattr(sample, name)) for name in names}
