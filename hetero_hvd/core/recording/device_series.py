"""The figures of each device as series, from samples in any order."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.messages import DeviceSample, NodeSampled

THE_NODE = "node"
JOULES = "energy_joules"
"""A counter, of a device's energy."""

Values = NDArray[np.float64]
Fields = Mapping[str, str]
"""Name of a series to the field of a sample."""


@dataclass(frozen=True, kw_only=True)
class DeviceSeries:
    """What is known of one device.

    Attributes:
        node: Name of its node.
        device: `node`, or the GPU's index.
        name: Product name of a GPU; empty: not told.
        times: Of the samples, seconds since 1970, ascending.
        columns: Name of a figure to its values at these times; NaN where it was not told.
        users: Who used a GPU in its last sample, in words.
    """

    node: str
    device: str
    name: str
    times: Values
    columns: Mapping[str, Values]
    users: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.node if self.device == THE_NODE else f"{self.node} GPU {self.device}"


@dataclass
class _Samples:
    """The samples of one device, as they come: lives of an agent may overlap in time."""

    columns: dict[str, array[float]]
    name: str = ""
    times: array[float] = field(default_factory=lambda: array("d"))
    newest_seconds: float = -np.inf
    users: tuple[str, ...] = ()

    def add(self, at_seconds: float, sample: NodeSampled | DeviceSample, fields: Fields) -> None:
        self.times.append(at_seconds)
        for name, column in self.columns.items():
            column.append(getattr(sample, fields[name]))


class SeriesCollector:
    """Takes samples in, in any order; gives series.

    Args:
        of_node: The series that are wanted of nodes.
        of_gpu: The same of GPUs.
    """

    def __init__(self, of_node: Fields, of_gpu: Fields) -> None:
        self._of_node = of_node
        self._of_gpu = of_gpu
        self._found: dict[tuple[str, str], _Samples] = {}

    def add(self, node: str, at_seconds: float, sample: NodeSampled) -> None:
        """Take a sample in."""
        self._samples(node, THE_NODE, self._of_node).add(at_seconds, sample, self._of_node)
        for gpu in sample.devices:
            own = self._samples(node, str(gpu.index), self._of_gpu)
            own.add(at_seconds, gpu, self._of_gpu)
            if at_seconds >= own.newest_seconds:
                own.newest_seconds = at_seconds
                own.name = gpu.name
                own.users = tuple(map(str, gpu.used_by))

    def series(self) -> Iterator[DeviceSeries]:
        """Of each device that was sampled."""
        for (node, device), own in self._found.items():
            order = np.argsort(np.array(own.times), kind="stable")
            yield DeviceSeries(
                node=node,
                device=device,
                name=own.name,
                times=np.array(own.times)[order],
                columns={name: np.array(column)[order] for name, column in own.columns.items()},
                users=own.users,
            )

    def _samples(self, node: str, device: str, fields: Fields) -> _Samples:
        if (node, device) not in self._found:
            self._found[node, device] = _Samples({name: array("d") for name in fields})
        return self._found[node, device]
