"""The memory that each worker of a cluster will have, from what its nodes say of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hetero_hvd.config import NodeConfig
from hetero_hvd.messages import WorkerId

HOST_MEMORY = "memory"


class _MemoryPlace(NamedTuple):
    """Memory that one worker or several have.

    Attributes:
        host: Of which machine: two nodes may be one.
        device: Number or name of a GPU; else the host's own.
        num_bytes: All of it.
    """

    host: str
    device: str
    num_bytes: int


def worker_memories(nodes: Iterable[tuple[NodeConfig, Mapping[str, Any]]]) -> dict[str, float]:
    """Bytes of each worker, who has an equal part of what several have to share.

    Args:
        nodes: Each with its `Diagnosis` as a dict. One that does not tell its memory, or not that
            of its GPUs, is left out.
    """
    places = [
        (node, slot, place)
        for node, diagnosis in nodes
        for slot, place in enumerate(_places(node, diagnosis))
    ]
    num_workers = Counter((place.host, place.device) for *_, place in places)
    found = {}
    for node, slot, place in places:
        part = place.num_bytes / num_workers[place.host, place.device]
        limit = node.memory_limit_bytes or part
        found[str(WorkerId(node.name, slot))] = min(part, limit)
    return found


def _places(node: NodeConfig, diagnosis: Mapping[str, Any]) -> list[_MemoryPlace]:
    """Where the workers of a node compute; empty where it is not known."""
    hardware = diagnosis.get("hardware")
    if not hardware:
        return []
    host, num_devices = hardware["host"], len(diagnosis.get("devices", ()))
    num_slots = node.resolved_slots(num_devices)
    if node.devices == () or not num_devices:
        return [_MemoryPlace(host, HOST_MEMORY, hardware["memory_bytes"])] * num_slots
    sizes = {str(gpu["index"]): gpu["memory_bytes"] for gpu in hardware["gpus"]}
    names = [str(each) for each in node.devices or range(num_slots)]
    places = [_MemoryPlace(host, name, sizes[name]) for name in names if sizes.get(name)]
    return places if len(places) == len(names) else []
