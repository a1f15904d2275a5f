"""Machines at work, as samples: what each kind of job makes their figures do, drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.messages import DeviceSample, NodeSampled

Values = NDArray[np.float64]
GIB = 2.0**30
GPU_BYTES, NODE_BYTES = 80 * GIB, 256 * GIB
Draw = np.random.Generator


def _cycle(rng: Draw, at: Values, period: float, part: float) -> Values:
    """1 while a device works: for a part of each cycle, which begins anywhere."""
    return (((at + period * rng.random()) % period) < part * period).astype(np.float64)


def _noisy(rng: Draw, values: Values, sigma: float) -> Values:
    return np.asarray(np.clip(values * (1 + sigma * rng.standard_normal(len(values))), 0, None))


def _figures(
    rng: Draw, work: Values, *, cpu: Values, disk: Values, network: tuple[Values, Values]
) -> dict[str, Values]:
    """Of a GPU that works where `work` is 1, and of its machine."""
    received, sent = network
    return {
        "gpu.use_ratio": np.clip(_noisy(rng, 0.97 * work, 0.02), 0, 1),
        "gpu.power_watts": _noisy(rng, 90 + 500 * work, 0.03),
        "gpu.dram_active_ratio": np.clip(_noisy(rng, 0.5 * work, 0.05), 0, 1),
        "gpu.memory_used_bytes": 30 * GIB + 0 * work,
        "cpu_use_ratio": np.clip(_noisy(rng, cpu, 0.05), 0, 1),
        "disk_read_bytes_per_second": _noisy(rng, disk, 0.1),
        "network_received_bytes_per_second": _noisy(rng, received, 0.1),
        "network_sent_bytes_per_second": _noisy(rng, sent, 0.1),
        "memory_used_bytes": _noisy(rng, 40 * GIB + 0 * work, 0.001),
    }


def compute(rng: Draw, at: Values) -> dict[str, Values]:
    """Nothing waits."""
    ones = np.ones(len(at))
    return _figures(rng, ones, cpu=0.2 * ones, disk=1e5 * ones, network=(1e5 * ones, 1e5 * ones))


def idle(rng: Draw, at: Values) -> dict[str, Values]:
    """Nothing runs; daemons do, now and then."""
    zeros = np.zeros(len(at))
    cpu = 0.01 + 0.02 * rng.binomial(1, 0.05, len(at)).astype(np.float64)
    found = _figures(rng, zeros, cpu=cpu, disk=zeros, network=(1e3 + zeros, 1e3 + zeros))
    return found | {"gpu.memory_used_bytes": 0.5 * GIB + zeros}


def from_processors(rng: Draw, at: Values) -> dict[str, Values]:
    """A loader's processors are busy while the GPU waits."""
    work = _cycle(rng, at, 7.0, 0.5)
    flat = 1e5 + 0 * at
    return _figures(rng, work, cpu=0.25 + 0.6 * (1 - work), disk=flat, network=(flat, flat))


def from_disks(rng: Draw, at: Values) -> dict[str, Values]:
    """Disks are busy while the GPU waits."""
    work = _cycle(rng, at, 9.0, 0.6)
    flat = 1e5 + 0 * at
    return _figures(rng, work, cpu=0.1 + 0 * at, disk=1e6 + 4e8 * (1 - work), network=(flat, flat))


def from_network(rng: Draw, at: Values) -> dict[str, Values]:
    """Data come over the network, nothing goes."""
    work = _cycle(rng, at, 6.0, 0.5)
    brought = 1e5 + 8e8 * (1 - work)
    network = (brought, 1e5 + 0.01 * brought)
    return _figures(rng, work, cpu=0.1 + 0 * at, disk=1e5 + 0 * at, network=network)


def reducing(rng: Draw, at: Values) -> dict[str, Values]:
    """Kernels of a reduction spin: use stays at 97 %, power and memory traffic do not."""
    work = _cycle(rng, at, 5.0, 0.6)
    both = 1e5 + 1.1e9 * (1 - work)
    found = _figures(rng, work, cpu=0.1 + 0 * at, disk=1e5 + 0 * at, network=(both, both))
    return found | {"gpu.use_ratio": np.clip(_noisy(rng, 0.97 + 0 * at, 0.01), 0, 1)}


def both(rng: Draw, at: Values) -> dict[str, Values]:
    """Processors and links are busy while the GPU waits."""
    work = _cycle(rng, at, 8.0, 0.5)
    wire = 1e5 + 1e9 * (1 - work)
    return _figures(rng, work, cpu=0.2 + 0.6 * (1 - work), disk=1e5 + 0 * at, network=(wire, wire))


def unexplained(rng: Draw, at: Values) -> dict[str, Values]:
    """A GPU waits, and nothing that is measured is busier meanwhile."""
    work = _cycle(rng, at, 8.0, 0.5)
    flat = 1e5 + 0 * at
    return _figures(rng, work, cpu=0.2 + 0 * at, disk=flat, network=(flat, flat))


def spinning(rng: Draw, at: Values) -> dict[str, Values]:
    """Use of 100 % in kernels that wait all the time."""
    zeros = np.zeros(len(at))
    found = _figures(rng, zeros, cpu=0.1 + zeros, disk=zeros, network=(1e3 + zeros, 1e3 + zeros))
    return found | {"gpu.use_ratio": 1.0 + zeros, "gpu.power_watts": _noisy(rng, 130 + zeros, 0.02)}


KINDS: dict[str, tuple[Callable[[Draw, Values], dict[str, Values]], str]] = {
    "compute": (compute, "compute"),
    "idle": (idle, "idle"),
    "input from processors": (from_processors, "input"),
    "input from disks": (from_disks, "input"),
    "input from a network": (from_network, "input"),
    "reductions": (reducing, "communication"),
    "input and reductions": (both, "unknown"),
    "waiting, nobody knows for what": (unexplained, "unknown"),
    "spinning": (spinning, "unknown"),
}
"""Name to what draws it, and the type that its evidence allows."""


def samples(
    figures: dict[str, Values], at: Values, node: str = "b", *, gpu: int = 0
) -> Iterator[tuple[str, float, NodeSampled]]:
    """The samples of a machine with one GPU, in steps as exporters tell them."""
    of_gpu = {name.removeprefix("gpu."): values for name, values in figures.items()
              if name.startswith("gpu.")}  # fmt: skip
    of_node = {name: values for name, values in figures.items() if not name.startswith("gpu.")}
    for place, when in enumerate(at.tolist()):
        own: dict[str, Any] = {name: float(values[place]) for name, values in of_gpu.items()}
        own["use_ratio"] = round(own["use_ratio"], 2)
        own["memory_used_bytes"] = 2.0**20 * round(own["memory_used_bytes"] / 2.0**20)
        device = DeviceSample(index=gpu, name="H100", memory_total_bytes=GPU_BYTES, **own)
        told: dict[str, Any] = {name: float(values[place]) for name, values in of_node.items()}
        yield (
            node,
            when,
            NodeSampled(node=node, memory_total_bytes=NODE_BYTES, devices=(device,), **told),
        )
