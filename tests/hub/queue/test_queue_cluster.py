"""The queue follows its nodes.yaml: devices that come, go and change, and pools."""

from __future__ import annotations

import json

import pytest

from hetero_hvd.core.queue.devices import DevicePool
from hetero_hvd.hub.queue.job_queue import JobQueue
from hetero_hvd.hub.queue.queue_cluster import QueueCluster

ALPHA = {"name": "alpha", "devices": []}
BETA = {"name": "beta", "devices": []}
LIMITED = {"name": "default", "max_devices_per_user": 2, "lends": False}

EDITS = {
    "a node that has gone": ([ALPHA], {}, {"alpha:0": "default", "beta:0": None}, ()),
    "a node more": ([ALPHA, BETA, {"name": "c", "devices": []}], {},
                    {"alpha:0": "default", "beta:0": "default", "c:0": "default"}, ()),
    "a node of another pool": ([ALPHA, BETA | {"pool": "lab"}], {},
                               {"alpha:0": "default", "beta:0": "lab"}, ()),
    "a pool with a limit": ([ALPHA, BETA], {"pools": [LIMITED]},
                            {"alpha:0": "default", "beta:0": "default"},
                            (DevicePool(lends=False, max_devices_per_user=2),)),
    "a broken edit": ([ALPHA | {"slots": -1}], {},
                      {"alpha:0": "default", "beta:0": "default"}, ()),
    "a name of two slots": ([ALPHA | {"slots": 2}, BETA | {"name": "alpha-1"}], {},
                            {"alpha:0": "default", "beta:0": "default"}, ()),
    "a pool of no node": ([ALPHA, BETA], {"pools": [{"name": "lab"}]},
                          {"alpha:0": "default", "beta:0": "default"}, ()),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "more", "pools_of", "pools"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_holds_until_the_next_one(tmp_path, nodes, more, pools_of, pools):
    """However often the queue looks."""
    path = tmp_path / "cluster.yaml"
    clock = iter(range(1, 10**6))

    def written(content):
        (tmp_path / "new").write_text(json.dumps(content))
        (tmp_path / "new").replace(path)

    def ready(queue):
        devices = queue.state.devices.items()
        return {name: each.pool if each.condition == "ready" else None for name, each in devices}

    def opened():
        cluster = QueueCluster(path, {})
        return JobQueue(tmp_path, cluster, lambda: 10.0 * next(clock), lambda _uid: None)

    written({"nodes": [ALPHA, BETA]})
    queue = opened()
    written({"nodes": nodes, **more})
    for _ in range(3):
        queue.look()
        assert ready(queue) == pools_of
        assert tuple(queue.state.pools.values()) == pools
    written({"nodes": [ALPHA, BETA]})
    for _ in range(3):
        queue.look()
    assert ready(queue)["beta:0"] == "default"
    assert not queue.state.pools
