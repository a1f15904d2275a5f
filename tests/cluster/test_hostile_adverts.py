"""What hostile adverts on a real network do to discovery: nothing but to be counted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.job import JobConfig
from hetero_hvd.driver.job import TICK_SECONDS
from hetero_hvd.driver.nodes.node_discovery import NodeDiscovery
from hetero_hvd.security.cluster_key import make_key

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
ATTACKER = Path(__file__).with_name("attacker.py")


class Listener:
    """A driver's ear, that ticks as the driver does and notes what it costs and hears."""

    def __init__(self, key):
        job = JobConfig(discover=True, cluster_key_file=str(key))
        self.found = NodeDiscovery(job)
        self._config = ClusterConfig(job=job, nodes=(NodeConfig(name="local", slots=1),))
        self.longest_tick_seconds = 0.0
        self.packets = []
        heard = self.found._receiver._listener.heard

        def noted(sender, packet):
            self.packets.append((sender, packet))
            heard(sender, packet)

        self.found._receiver._listener.heard = noted

    def nodes(self):
        """Names to addresses of the announced nodes."""
        return {n.name: n.address for n in self.found.merge(self._config).nodes[1:]}

    def has_news(self, since_seconds):
        """Whether somebody has signed an advert since this time."""
        return any(a.issued_at_seconds > since_seconds for a in self.found.present())

    async def until(self, condition, what):
        """Tick until it holds."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.nodes()} {self.found.ignored}"
            await asyncio.sleep(TICK_SECONDS)
            before = time.thread_time()
            self.found.listen()
            spent = time.thread_time() - before
            self.longest_tick_seconds = max(self.longest_tick_seconds, spent)


class Network:
    """An honest node and an attacker on virtual hosts."""

    def __init__(self, cluster, key):
        self.gateway = cluster.gateway
        self.bridge = cluster.bridge
        self.alpha = cluster["alpha"]
        self.beta = cluster["beta"]
        self._key = key
        self._processes = []

    def honest(self):
        """Start the agent of alpha."""
        command = [sys.executable, "-m", "hetero_hvd", "agent", "--name", "alpha"]
        return self._start(self.alpha, [*command, "--key-file", str(self._key)])

    def attack(self, *recorded):
        """Start an attack from beta."""
        command = [sys.executable, str(ATTACKER), "shout", self.beta.address, "eth0"]
        return self._start(self.beta, [*command, *recorded])

    def _start(self, host, command):
        vector = [*host.enter(), *command]
        self._processes.append(subprocess.Popen(vector, stderr=subprocess.DEVNULL))
        return self._processes[-1]

    def forget_neighbours(self):
        """Nobody may send to the hardware address that alpha's first interface had.

        For half a minute others would, and what they send is lost.
        """
        for namespace, device in ([], self.bridge), (["-n", self.beta.namespace], "eth0"):
            subprocess.run(["ip", *namespace, "neigh", "flush", "dev", device], check=True)

    def close(self):
        """End what was started."""
        for process in self._processes:
            process.kill()
            process.wait()


async def come_move_and_leave(listener, network):
    """What an honest node does; its first advert, as anybody could record it."""
    alpha, moved = network.alpha, f"{network.alpha.address}0"
    agent = network.honest()
    await listener.until(lambda: listener.nodes() == {"alpha": alpha.address}, "it joins")
    move(alpha, alpha.address, moved, network.gateway)
    try:
        await listener.until(lambda: listener.nodes() == {"alpha": moved}, "it moves")
        replugged_at = replug(alpha, moved, network)
        await listener.until(lambda: listener.has_news(replugged_at), "its cable is back")
        agent.terminate()
        await listener.until(lambda: listener.nodes() == {}, "it leaves")
    finally:
        move(alpha, moved, alpha.address, network.gateway)
        network.forget_neighbours()
    is_answer = 7  # the byte of a packet's header that counts its answers
    return next(p for sender, p in listener.packets if sender == alpha.address and p[is_answer])


def test_hostile_adverts_are_counted_and_nothing_else(virtual_cluster, tmp_path, capsys):
    """Unsigned, forged, replayed, oversized, shell-like ones, 10,000 in a burst, over IPv4 and 6.

    Meanwhile a node joins, moves to another address, loses its interface and gets one with the same
    address, leaves, and is followed; a recorded advert of it does not bring it back.
    """
    make_key(tmp_path / "key")
    network = Network(virtual_cluster({"alpha": 100, "beta": 50}), tmp_path / "key")

    async def scenario():
        listener = Listener(tmp_path / "key")
        await listener.found.open()
        try:
            first = network.attack()
            recorded = await come_move_and_leave(listener, network)
            second = network.attack(recorded.hex())
            for attack in (first, second):
                await listener.until(lambda a=attack: a.poll() == 0, "the attack goes on")
            listener.found.listen()
        finally:
            network.close()
            await listener.found.close()
        return listener

    listener = asyncio.run(scenario())
    assert listener.nodes() == {}
    counts = listener.found.ignored
    assert counts["dropped"] > 1000
    assert counts["malformed"] >= 32
    assert counts["of another key"] >= 2
    assert counts["replayed"] >= 1
    assert any(sender.startswith("fe80:") for sender, _ in listener.packets)
    with capsys.disabled():
        sys.stdout.write(f" longest tick {1000 * listener.longest_tick_seconds:.1f} ms ")
    assert listener.longest_tick_seconds < TICK_SECONDS


def move(host, old, new, gateway):
    """Give a host another address."""
    steps = f"addr del {old}/24 dev eth0", f"addr add {new}/24 dev eth0"
    for step in (*steps, f"route replace default via {gateway}"):
        subprocess.run(["ip", "-n", host.namespace, *step.split()], check=True)


def replug(host, address, network):
    """Take a host's interface away, and give it a new one with the same name and address."""
    link = f"{network.bridge}v{host.address.rpartition('.')[2]}"
    steps = (
        f"-n {host.namespace} link del eth0",
        f"link add {link} type veth peer name eth0 netns {host.namespace}",
        f"link set {link} master {network.bridge} up",
        f"-n {host.namespace} addr add {address}/24 dev eth0",
        f"-n {host.namespace} link set eth0 up",
        f"-n {host.namespace} route add default via {network.gateway}",
    )
    for step in steps:
        subprocess.run(["ip", *step.split()], check=True)
    return time.time()
