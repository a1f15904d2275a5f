"""The recipe of docs/guide/discovery.md: a WireGuard tunnel where nodes do not reach each other.

By the kernel's own WireGuard where it has it, else by `wireguard-go`, the same in a process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import ExitStack

import pytest

from tests.cluster.test_routes import HOSTS, RoutedJob, rule

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(300)]
PATH = "/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin"
PORT = 51820
HUB = "alpha"


def program(name):
    """Where a program is; None: nowhere."""
    return shutil.which(name, path=PATH)


def key_pair():
    """A private key and its public one."""
    private = subprocess.check_output([program("wg"), "genkey"], text=True).strip()
    public = subprocess.check_output([program("wg"), "pubkey"], input=private, text=True).strip()
    return private, public


def make_interface(host, name, stack):
    """A WireGuard interface of a host, without keys; how it was made."""
    added = subprocess.run(
        [*host.enter(), "ip", "link", "add", name, "type", "wireguard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if added.returncode == 0:
        stack.callback(host.run, ["ip", "link", "del", name])
        return
    if program("wireguard-go") is None:
        pytest.skip(f"needs wireguard-go: the kernel has none ({added.stderr.strip()})")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*host.enter(), program("wireguard-go"), "-f", name], **quiet)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline = time.monotonic() + 20
    while name not in host.run(["ip", "-br", "link"]).stdout:
        assert process.poll() is None, "wireguard-go has ended"
        assert time.monotonic() < deadline, "wireguard-go makes no interface"
        time.sleep(0.05)


def set_up(cluster, folder, stack):
    """The tunnel of the recipe: alpha can be reached, the others keep their way to it open.

    Returns:
        Name of each host to that of its interface.
    """
    names = {name: f"{cluster.bridge}-{name}"[:15] for name in cluster.hosts}
    keys = {name: key_pair() for name in names}
    addresses = {name: f"10.99.0.{number}" for number, name in enumerate(names, start=1)}
    for name, interface in names.items():
        host = cluster[name]
        make_interface(host, interface, stack)
        private = folder / f"{name}.key"
        private.touch(mode=0o600)
        private.write_text(keys[name][0])
        words = ["set", interface, "private-key", str(private)]
        if name == HUB:
            words += ["listen-port", str(PORT)]
            for other in names.keys() - {HUB}:
                words += ["peer", keys[other][1], "allowed-ips", f"{addresses[other]}/32"]
            host.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        else:
            words += ["peer", keys[HUB][1], "allowed-ips", "10.99.0.0/24"]
            words += ["endpoint", f"{cluster[HUB].address}:{PORT}", "persistent-keepalive", "25"]
        host.run([program("wg"), *words])
        host.run(["ip", "addr", "add", f"{addresses[name]}/24", "dev", interface])
        host.run(["ip", "link", "set", interface, "mtu", "1420", "up"])
    return names


def test_nodes_that_only_reach_one_udp_port_train_through_a_tunnel(virtual_cluster, tmp_path):
    """No TCP packet goes from node to node; all that Gloo sends is in the tunnel."""
    if program("wg") is None or program("iptables") is None:
        pytest.skip("needs wireguard-tools and iptables")
    cluster = virtual_cluster(HOSTS)
    with ExitStack() as stack:
        interfaces = set_up(cluster, tmp_path, stack)
        for host in cluster.hosts.values():
            for other in cluster.hosts.values():
                if other is not host:
                    stack.enter_context(rule(host, "INPUT", "-s", other.address, "-j", "DROP"))
        with RoutedJob(tmp_path, cluster, interfaces, min_np=3) as job:
            at = job.wait_for("3 workers train together")
            job.wait_for(r"step [2-9]\d+  epoch", after=at)
        for name, host in cluster.hosts.items():
            dropped = host.run(["iptables", "-nvxL", "INPUT"]).stdout
            counts = [int(line.split()[0]) for line in dropped.splitlines() if "DROP" in line]
            assert counts == [0, 0], dropped
            told = host.run([program("wg"), "show", interfaces[name], "transfer"]).stdout
            received = sum(int(line.split()[1]) for line in told.splitlines())
            assert received > 10_000, told
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(summary["workers"]) == 3
