"""Agents behind a router announce themselves once, to the hub: every driver finds them by it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import ExitStack

import pytest

from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.errors import TryAgainError
from hetero_hvd.security.cluster_key import make_key, read_key
from tests.cluster.test_agents import Scene
from tests.cluster.test_announce_to import PORT, attack, hostile, router  # noqa: F401 - a fixture
from tests.hub.rig import order
from tests.kit.virtual_cluster import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(300)]
HUB_PORT = 9391


@pytest.fixture
def other_networks(virtual_cluster, router, tmp_path):  # noqa: ARG001, F811 - it is on
    """That of the hub, with the driver's host, and one of a machine alone."""
    virtual_cluster({"alpha": 100, "beta": 50})  # or the reason why there is none
    with ExitStack() as stack:
        found = []
        for names in (("gamma", "delta"), ("epsilon",)):
            folder = tmp_path / "-".join(names)
            folder.mkdir()
            hosts = dict.fromkeys(names, 100)
            found.append(stack.enter_context(running_cluster(hosts, folder=folder)))
        yield found


def status_of(scene, host):
    """What the hub tells, asked from here; None: it does not answer."""
    target = AnnounceTarget(host.address, HUB_PORT)
    try:
        return asyncio.run(order(read_key(scene.key), target, "status", {}))
    except TryAgainError:
        return None


def wait_until_told(scene, host, *names):
    """Until these announce themselves to the hub, and no others."""
    deadline = time.monotonic() + 60
    while (status := status_of(scene, host)) is None or status["announced"] != list(names):
        assert time.monotonic() < deadline, (status, (scene.folder / "hub.txt").read_text())
        time.sleep(0.2)


def ignored(scene, host):
    """What the hub has counted."""
    return status_of(scene, host)["ignored_adverts"]


def listed_elsewhere(scene, host, hub_host):
    """Names of the nodes that are found on a host that reaches the hub by its address alone."""
    job = {"cluster_key_file": str(scene.key), "hub": f"{hub_host.address}:{HUB_PORT}"}
    folder = scene.folder / "elsewhere"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(json.dumps({"job": job, "nodes": []}))
    return scene.listed(on=host, folder=folder)


def test_one_word_to_the_hub_brings_a_node_to_every_driver(
    virtual_cluster, other_networks, tmp_path
):
    """A job on the hub's network trains with it, a machine elsewhere that names the hub sees it.

    A hub that is killed for a moment costs nothing; for longer the node, which is back with it.
    An agent that leaves in order says so through the hub; one that is killed is told of no more.
    """
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    near, far = other_networks
    hub_host, driver_host = near["gamma"], near["delta"]
    with Scene(tmp_path, cluster) as scene:
        announce = ("--announce-to", f"{hub_host.address}:{PORT}")
        hub = scene.hub(hub_host, "--listen", str(PORT))
        driver = scene.drive(on=driver_host, driver_address=driver_host.address)
        scene.wait_for("waiting for agents: 0 workers of 1")
        alpha = scene.agent("alpha", *announce)
        scene.wait_for("[alpha:0] takes part")

        assert listed_elsewhere(scene, far["epsilon"], hub_host) == ["alpha"]
        make_key(tmp_path / "other.key")
        attacks = hostile(scene.key, tmp_path / "other.key")
        attack(cluster["beta"], hub_host, attacks, lambda: ignored(scene, hub_host))

        hub.kill()
        hub.wait()
        hub = scene.hub(hub_host, "--listen", str(PORT))
        wait_until_told(scene, hub_host, "alpha")
        assert "no longer announced" not in scene.log.read_text()

        hub.kill()
        hub.wait()
        scene.wait_for("alpha:0 is no longer announced and leaves")
        hub = scene.hub(hub_host, "--listen", str(PORT))
        scene.wait_for("alpha:0 is wanted again and stays")  # it was the only one

        beta = scene.agent("beta", *announce)
        scene.wait_for("[beta:0] takes part")
        alpha.send_signal(signal.SIGTERM)
        scene.wait_for("alpha has said good-bye", log=tmp_path / "hub.txt")
        scene.wait_for("alpha:0 has left")

        beta.kill()
        scene.wait_for("beta announces itself no more", log=tmp_path / "hub.txt")
        assert status_of(scene, hub_host)["announced"] == []
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(40) == 143
        hub.send_signal(signal.SIGTERM)
        assert hub.wait(20) == 0
