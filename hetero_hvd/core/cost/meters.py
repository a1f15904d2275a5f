"""What the samples of nodes say of energy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from hetero_hvd.core.cost.energy import EnergySample
from hetero_hvd.messages import NodeSampled

CPU = "cpu"
COLUMNS = (
    "at_unix_seconds",
    "node",
    "device",
    "uuid",
    "machine_id",
    "seconds",
    "energy_joules",
    "power_watts_mean",
)
"""What a row has at least."""

Row = Mapping[str, Any]
"""What a meter showed in an interval: `at_unix_seconds` of its beginning, `node`, `device` (-1: the
node itself), `uuid`, `machine_id`, `seconds` that it lasts at most, `energy_joules` at its end and
`power_watts_mean`; None: not told."""


def interval_samples(rows: Iterable[Row]) -> Iterator[EnergySample]:
    """The meters of all nodes; one that two nodes share, as they are one machine, counts once.

    Where a meter begins, its mean power stands for it.

    Args:
        rows: By time.
    """
    owners: dict[tuple[str, str], str] = {}
    meters: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        machine = row["machine_id"] or row["node"]
        is_gpu = row["device"] >= 0
        name = f"gpu {row['device']:.0f}" if is_gpu else CPU
        identity = (row["uuid"] or machine, row["uuid"] or name)
        is_told = row["energy_joules"] is not None or row["power_watts_mean"] is not None
        if is_told and owners.setdefault(identity, row["node"]) == row["node"]:
            meters[row["node"], name].append(row)
    for (node, name), found in meters.items():
        yield from _of_intervals(node, name, found)


def _of_intervals(node: str, name: str, rows: Sequence[Row]) -> Iterator[EnergySample]:
    begins = [float(row["at_unix_seconds"]) for row in rows]
    for index, row in enumerate(rows):
        begin, seconds = begins[index], float(row["seconds"])
        end = min([begin + seconds, *begins[index + 1 : index + 2]])
        joules, watts = _number(row["energy_joules"]), _number(row["power_watts_mean"])
        if not index:
            before = joules - watts * (end - begin)
            yield EnergySample(node, name, begin, before, watts, seconds)
        yield EnergySample(node, name, end, joules, watts, seconds)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


class PowerMeters:
    """Mean power of nodes over the samples that were added; a meter of two nodes counts once."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}
        self._watts: dict[str, list[float]] = defaultdict(list)

    def add(self, sample: NodeSampled) -> None:
        """Take one in."""
        machine = sample.machine_id or sample.node
        meters = {(machine, CPU): sample.package_power_watts}
        meters |= {
            (gpu.uuid or machine, f"gpu {gpu.index}"): gpu.power_watts for gpu in sample.devices
        }
        told = {key: watts for key, watts in meters.items() if math.isfinite(watts)}
        own = [
            w for key, w in told.items() if self._owners.setdefault(key, sample.node) == sample.node
        ]
        if own:
            self._watts[sample.node].append(math.fsum(own))

    @property
    def mean_watts(self) -> dict[str, float]:
        """Of each node that was measured."""
        return {node: fmean(values) for node, values in self._watts.items()}
