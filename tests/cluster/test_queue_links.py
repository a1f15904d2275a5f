"""The queue learns from a job which node is behind a slow link, and places others elsewhere."""

from __future__ import annotations

import pytest

from tests.hub.queue.queue_rig import QueueHub, until
from tests.kit.virtual_cluster import INTERFACE

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.process,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
]
SLOW_BYTES_PER_SECOND = 200e6 / 8
RATE = ["rate", "200mbit", "burst", "64kb", "latency", "200ms"]
COMPUTE = {"emulate": {"seconds_per_sample": 0.004}}
ENDLESS = {"epochs": 100_000, "step_seconds": 0.0, "ballast": 2_000_000}


def test_a_link_that_one_job_has_measured_places_the_next(virtual_cluster, tmp_path):
    """What gamma sends is held to 200 Mbit/s. Its device is listed first, and as fast as others."""
    cluster = virtual_cluster({"alpha": 200, "beta": 200, "gamma": 200})
    nodes = [cluster[n].node(slots=1, devices=[], **COMPUTE) for n in ("gamma", "alpha", "beta")]
    hub = QueueHub(tmp_path, nodes)
    cluster["gamma"].run(["tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *RATE])
    try:
        hub.start()
        learns(hub)
        follows(hub)
    finally:
        hub.close()
        cluster["gamma"].run(["tc", "qdisc", "del", "dev", INTERFACE, "root"])


def learns(hub):
    """A job with all three measures, and goes on without gamma; its link is known then."""
    job = hub.submit("first", script=ENDLESS, max_devices=2, needs=["node!=gamma"])
    until(lambda: {"alpha", "beta"} <= links(hub).keys(), lambda: state(hub, job))
    hub.order("cancel", jobs=[job])
    hub.wait_for_end(job)
    job = hub.submit("second", script=ENDLESS, max_devices=3)
    until(lambda: "gamma" in links(hub), lambda: state(hub, job))
    until(lambda: hub.job(job)["devices"] == ["alpha:0", "beta:0"], lambda: state(hub, job))
    assert "the link is too slow for it: gamma" in hub.job(job)["why"]
    found = links(hub)
    assert found["gamma"] < 1.3 * SLOW_BYTES_PER_SECOND, found
    assert min(found["alpha"], found["beta"]) > 2 * found["gamma"], found
    hub.order("cancel", jobs=[job])
    hub.wait_for_end(job)


def follows(hub):
    """Another job of two begins on the other nodes, also after the hub has been killed."""
    hub.kill()
    hub.start()
    job = hub.submit("third", script=ENDLESS, min_devices=2, max_devices=2)
    assert hub.job(job)["devices"] == ["alpha:0", "beta:0"], state(hub, job)


def links(hub):
    """Node to the bandwidth that is known of it."""
    found = {
        each["device"].partition(":")[0]: each["link_bytes_per_second"]
        for each in hub.order("list")["devices"]
    }
    return {node: speed for node, speed in found.items() if speed is not None}


def state(hub, job):
    """What there is to say when something does not come."""
    return f"{hub.order('list')} {hub.log_of(job)} {(hub.folder / 'hub.log').read_text()}"
