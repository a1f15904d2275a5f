"""The memory of each worker, from what nodes.yaml and the nodes say."""

from __future__ import annotations

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.remote.worker_memories import worker_memories

MIB = 2**20


def seen(host, *gpus, devices=None):
    """A diagnosis of a machine with 800 MiB."""
    found = [{"index": index, "memory_bytes": size} for index, size in enumerate(gpus)]
    usable = ["a GPU"] * len(gpus) if devices is None else devices
    return {"hardware": {"host": host, "memory_bytes": 800 * MIB, "gpus": found}, "devices": usable}


CASES = {
    "a worker on a CPU": ([({}, seen("a"))], [800]),
    "slots share a host": ([({"slots": 4}, seen("a"))], [200] * 4),
    "so do nodes on one": ([({}, seen("a")), ({"slots": 3}, seen("a"))], [200] * 4),
    "a worker on each GPU": ([({}, seen("a", 24 * MIB, 8 * MIB))], [24, 8]),
    "of those that are named": ([({"devices": (1,)}, seen("a", 24 * MIB, 8 * MIB))], [8]),
    "one twice": ([({"devices": (0, 0)}, seen("a", 24 * MIB))], [12, 12]),
    "a CPU in spite of a GPU": ([({"devices": ()}, seen("a", 24 * MIB))], [800]),
    "GPUs that torch cannot use": ([({}, seen("a", 24 * MIB, devices=[]))], [800]),
    "a limit": ([({"memory_limit_bytes": 6 * MIB}, seen("a", 24 * MIB))], [6]),
    "a GPU that does not tell": ([({}, seen("a", None)), ({}, seen("b"))], [800]),
    "a node that says nothing": ([({}, {}), ({}, seen("b", 8 * MIB))], [8]),
}


@pytest.mark.parametrize(("nodes", "wanted"), CASES.values(), ids=CASES)
def test_a_worker_has_what_its_device_has(nodes, wanted):
    """Or its part of it, or what the user allows."""
    given = [
        (NodeConfig(name=f"n{number}", **settings), told)
        for number, (settings, told) in enumerate(nodes)
    ]
    found = worker_memories(given)
    assert [size / MIB for size in found.values()] == wanted
    assert all(name.startswith("n") for name in found)
