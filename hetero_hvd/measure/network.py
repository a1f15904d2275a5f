"""The network's part of `hetero-hvd benchmark`: what Horovod gets from it, in a short job."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.config import ClusterConfig, NodesFile
from hetero_hvd.core.bandwidth import bus_factor
from hetero_hvd.core.benchmark import is_valid, verdict
from hetero_hvd.measure import comm
from hetero_hvd.messages import CommMeasured
from hetero_hvd.probes import benchmark_cache

OPERATIONS = ("allreduce", "broadcast")
SIZES = (4 * 2**10, 256 * 2**10, 4 * 2**20)
"""Bytes: of a message where latency rules, of a small bucket of gradients, of a large one."""

LINK_BYTES = 2**20
SETTINGS = {"start_timeout_seconds": 60.0, "heartbeat_timeout_seconds": 30.0}
"""Of the job: it ends where somebody does not come, and a busy machine is no lost one."""

GB = 1e9
MAX_LINES = 6
"""Links shown, the slowest first; JSON has all."""


@dataclass(frozen=True)
class Network:
    """What Horovod gets from the network.

    Attributes:
        found: The figures.
        is_known: They were measured earlier.
    """

    found: CommMeasured
    is_known: bool

    def as_plain(self) -> dict[str, Any]:
        """Ready for JSON: every operation and link with its verdict."""
        found = self.found
        facts: dict[str, Any] = msgspec.to_builtins(found)
        for entry in facts["operations"]:
            entry["verdict"] = verdict(entry["spread_ratio"])
        facts["link_verdicts"] = [
            ["" if row == column else verdict(ratio) for column, ratio in enumerate(ratios)]
            for row, ratios in enumerate(found.link_spread_ratios)
        ]
        return facts | {"workers": list(map(str, found.workers)), "is_cached": self.is_known}

    def in_words(self) -> Iterator[str]:
        """Lines for people: the operations, then the slowest links."""
        earlier = ", measured earlier" if self.is_known else ""
        yield f"network  {len(self.found.workers)} workers{earlier}"
        links = sorted(_links(self.found), key=lambda link: link[1])
        for what, speed, spread_ratio in (*_operations(self.found), *links[:MAX_LINES]):
            worth = verdict(spread_ratio) if speed else "not measured: there was no time"
            yield f"  {what:<26}{speed / GB:10.3f} GB/s     {worth}"
        if len(links) > MAX_LINES:
            yield f"  and {len(links) - MAX_LINES} links that are not slower"


def measure(
    nodes_files: Sequence[Path],
    environment: dict[str, str],
    *,
    cluster: ClusterConfig,
    num_workers: int,
    seconds: float,
    is_fresh: bool,
) -> Network:
    """Time collective operations and each link between the workers of all slots.

    The job tells of its progress on standard error and leaves no folder.

    Args:
        nodes_files: The nodes and settings; see `NodesFile`.
        environment: As for `NodesFile`.
        cluster: The nodes that take part, announced ones too.
        num_workers: All their slots, >= 2; it is not begun with fewer.
        seconds: For the measurements; the start of the workers comes on top.
        is_fresh: Measure again what is known.

    Returns:
        What was found.

    Raises:
        UserError: Nothing could be measured.
    """
    key = _key(cluster)
    known = None if is_fresh else benchmark_cache.load(key, CommMeasured)
    if known is not None:
        return Network(known, is_known=True)
    plan = {"ops": OPERATIONS, "sizes": SIZES, "max_bytes": LINK_BYTES, "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="hetero_hvd-") as folder:
        output = Path(folder, "network")
        with redirect_stdout(sys.stderr):
            flags = {"output": str(output), "min_np": num_workers, "max_np": num_workers}
            settings = NodesFile(nodes_files, environment, flags | SETTINGS)
            found = comm.measure(settings, plan, output)
    ratios = [ratio for _, _, ratio in (*_operations(found), *_links(found))]
    benchmark_cache.save(key, found, is_valid=all(map(is_valid, ratios)))
    return Network(found, is_known=False)


def _operations(found: CommMeasured) -> Iterator[tuple[str, float, float | None]]:
    """Name, bytes per second (bus bandwidth), and how much the repeats differ."""
    for entry in found.operations:
        factor = bus_factor(entry.op, len(found.workers))
        size = f"{entry.num_bytes // 2**10} KiB"
        speed = factor * entry.num_bytes / entry.median_seconds
        yield f"{entry.op} {entry.backend} {size}", speed, entry.spread_ratio


def _links(found: CommMeasured) -> Iterator[tuple[str, float, float | None]]:
    for sender, row, ratios in zip(
        found.workers, found.links, found.link_spread_ratios, strict=True
    ):
        for receiver, speed, ratio in zip(found.workers, row, ratios, strict=True):
            if sender != receiver:
                yield f"{sender} > {receiver}", speed, ratio


def _key(cluster: ClusterConfig) -> dict[str, str]:
    """What the network's speed depends on, as far as it is known here."""
    nodes = {
        f"node {node.name}": f"{node.address} {node.interface} {node.slots} {node.devices}"
        for node in cluster.nodes
    }
    return {"what": "network", "driver_address": str(cluster.job.driver_address), **nodes}
