"""What each node and GPU of a recording did: figures over its time, without what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.patterns.cycle import Cycle, find_cycle
from hetero_hvd.core.recording.device_series import JOULES, DeviceSeries, SeriesCollector
from hetero_hvd.messages import NodeSampled

IDLE_RATIO, SATURATED_RATIO = 0.05, 0.95
GAP_INTERVALS = 2.5
"""So many intervals between two samples are a gap, of which nothing is known."""

FIGURES = ("use_ratio", "memory_used_bytes", "temperature_celsius", "power_watts")
_OF_NODE = {
    "use_ratio": "cpu_use_ratio",
    "memory_used_bytes": "memory_used_bytes",
    "temperature_celsius": "cpu_temperature_celsius",
    "power_watts": "package_power_watts",
    JOULES: "package_energy_joules",
}
_OF_GPU = {name: name for name in (*FIGURES, JOULES)}

Values = NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one figure, over all samples that tell it.

    Attributes:
        mean: Arithmetic.
        median: Half are below it.
        p95: 95 % are below it.
        max: The largest.
    """

    mean: float
    median: float
    p95: float
    max: float


class DeviceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one device did.

    Attributes:
        node: Name of its node.
        device: `node`, or the GPU's index.
        name: Product name of a GPU.
        num_samples: That tell of it.
        every_seconds: Between two samples, as it was reached; None: there is one at most.
        missing_seconds: Of the recording, of which nothing is known.
        idle_seconds: In which at most 5 % of it were used; None: not told.
        saturated_seconds: In which at least 95 % were used; None: not told.
        joules: By its own counter, or where it has none its power; None: it tells neither.
        figures: Name of a figure to its spread; those that are told.
        cycle: Of its use, or its power, as the steps of a training make it; None: none is found.
    """

    node: str
    device: str
    name: str
    num_samples: int
    every_seconds: float | None
    missing_seconds: float
    idle_seconds: float | None
    saturated_seconds: float | None
    joules: float | None
    figures: dict[str, Spread]
    cycle: Cycle | None = None


class Interval(NamedTuple):
    """Of a recording, seconds since 1970.

    Attributes:
        begin: When it begins.
        end: When it ends.
        every: Between two samples, as it was wanted.
    """

    begin: float
    end: float
    every: float


class DeviceFigures:
    """Takes samples in, in any order; gives summaries.

    Args:
        interval: Of the recording.
    """

    def __init__(self, interval: Interval) -> None:
        self._interval = interval
        self._samples = SeriesCollector(_OF_NODE, _OF_GPU)

    def add(self, node: str, at_seconds: float, sample: NodeSampled) -> None:
        """Take a sample in."""
        self._samples.add(node, at_seconds, sample)

    def summaries(self) -> Iterator[DeviceSummary]:
        """Of each device, by node."""
        for series in self._samples.series():
            yield self._summary(series)

    def _summary(self, series: DeviceSeries) -> DeviceSummary:
        begin, end, every = self._interval
        times, columns = series.times, series.columns
        steps = np.diff(times)
        reached = float(np.median(steps)) if len(steps) else math.nan
        longest = GAP_INTERVALS * max(every, reached if math.isfinite(reached) else every)
        spans = np.diff(np.concatenate(([begin], times, [end])))
        use = columns["use_ratio"]
        lasting = np.append(np.where(steps <= longest, steps, 0.0), 0.0)
        return DeviceSummary(
            node=series.node,
            device=series.device,
            name=series.name,
            num_samples=len(times),
            every_seconds=reached if math.isfinite(reached) else None,
            missing_seconds=float(spans[spans > longest].sum()),
            idle_seconds=_time(use, lasting, use <= IDLE_RATIO),
            saturated_seconds=_time(use, lasting, use >= SATURATED_RATIO),
            joules=_joules(columns[JOULES], columns["power_watts"], lasting),
            figures={name: spread for name in FIGURES if (spread := _spread(columns[name]))},
            cycle=_cycle(times, (use, columns["power_watts"])),
        )


def _cycle(times: Values, figures: Iterable[Values]) -> Cycle | None:
    """By that figure which shows it in most windows; no further one is read if that is in all."""
    best: Cycle | None = None
    for values in figures:
        found = find_cycle(times, values)
        if found is not None and (best is None or found.window_ratio > best.window_ratio):
            best = found
        if best is not None and best.window_ratio == 1.0:
            break
    return best


def _time(use: Values, lasting: Values, chosen: NDArray[np.bool_]) -> float | None:
    """Of the samples that are chosen, each until the next one."""
    return float(lasting[chosen].sum()) if np.isfinite(use).any() else None


def _joules(counters: Values, watts: Values, lasting: Values) -> float | None:
    """By the counter, over gaps too; it begins anew where the machine does."""
    told = counters[np.isfinite(counters)]
    if len(told) > 1:
        steps = np.diff(told)
        return float(steps[steps > 0].sum())
    measured = np.isfinite(watts)
    return float((watts[measured] * lasting[measured]).sum()) if measured.any() else None


def _spread(values: Values) -> Spread | None:
    told = values[np.isfinite(values)]
    if not len(told):
        return None
    median, p95 = np.percentile(told, [50, 95])
    return Spread(
        mean=float(told.mean()), median=float(median), p95=float(p95), max=float(told.max())
    )
