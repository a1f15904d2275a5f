"""A node starts its agent and trains, without ssh and without a word in nodes.yaml."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hetero_hvd.discovery.key import make_key

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
SCRIPT = Path(__file__).parents[1] / "driver" / "train.py"


def start_agent(host, key):
    """An agent on a virtual host."""
    vector = [sys.executable, "-m", "hetero_hvd", "agent", "--key-file", str(key)]
    vector += ["--name", host.name, "--slots", "1"]
    return subprocess.Popen(
        [*host.enter(), *vector], cwd=key.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_until(condition, *, seconds, what):
    """Seconds until the condition held; fails after so many."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            pytest.fail(what())
        time.sleep(0.05)
    return time.monotonic() - began


def hostile_packets(address):
    """Unsigned, oversized and shell-like adverts as raw multicast packets; how many were sent."""
    from zeroconf import DNSOutgoing, DNSText  # noqa: PLC0415 - the attacker's own

    texts = [b"\x05hello", b"\x0f0=$(touch /boom)", b"\xff" * 8000, b""]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
        attacker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        for number in range(2000):
            packet = DNSOutgoing(0x8400)
            name = f"x{number}-$(reboot)._hetero-hvd._tcp.local."
            packet.add_answer_at_time(DNSText(name, 16, 1, 120, texts[number % 4]), 0)
            for data in packet.packets():
                attacker.sendto(data, ("224.0.0.251", 5353))
    return 2000


def test_a_node_that_starts_its_agent_is_training_within_15_seconds(virtual_cluster, tmp_path):
    """Amid a burst of hostile adverts, which are counted and lead to nothing."""
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    key = tmp_path / "cluster.key"
    make_key(key)
    job = {"discover": True, "cluster_key_file": str(key), "driver_address": cluster.gateway}
    nodes = [{"name": "local", "slots": 1, "devices": []}]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"job": job, "nodes": nodes}))
    vector = [sys.executable, "-m", "hetero_hvd", "run", "--output", "out", "--"]
    log = tmp_path / "job.txt"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [*vector, str(SCRIPT), "2000"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT
        )
    agent = None
    try:
        wait_until(lambda: "step" in log.read_text(), seconds=60, what=log.read_text)
        hostile_packets(cluster.gateway)
        agent = start_agent(cluster["alpha"], key)
        seconds = wait_until(
            lambda: "alpha:0" in log.read_text() and "2 workers" in log.read_text(),
            seconds=40,
            what=log.read_text,
        )
        assert seconds < 15
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 0
    finally:
        driver.send_signal(signal.SIGTERM)
        driver.wait(40)
        if agent is not None:
            agent.kill()
            agent.communicate()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["workers"]) == {"alpha:0", "local:0"}
    assert "was ignored: malformed" in (tmp_path / "out" / "logs" / "driver.log").read_text()
