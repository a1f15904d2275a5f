"""The recipe of docs/guide/discovery.md: a WireGuard tunnel where nodes do not reach each other.

Its commands are the page's own. By the kernel's WireGuard where it has it, else by `wireguard-go`,
as the page says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.test_routes import HOSTS, RoutedJob, rule

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(300)]
PATH = "/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin"
PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "discovery.md").read_text()
SECTION = re.search(r"## A tunnel through NAT.*?(?=\n## )", PAGE, re.DOTALL)[0]
BLOCK = re.search(r"```\n(.*?)```", SECTION, re.DOTALL)[1]
EACH, ALPHA, BETA = re.split(r"^# (?:alpha|beta).*\n", BLOCK, flags=re.MULTILINE)
MAKE_KEY, MAKE_INTERFACE = EACH.splitlines()[:2]
(INSTEAD,) = re.findall(r"`(wireguard-go \w+)` in place of `ip link add`", SECTION)


def program(name):
    """Where a program is; None: nowhere."""
    return shutil.which(name, path=PATH)


class Recipe:
    """The page's commands as one of the test's hosts has to give them.

    Args:
        cluster: The hosts.
        folder: In the place of /etc/wireguard, which they have in common.
    """

    def __init__(self, cluster, folder):
        self._cluster = cluster
        self._folder = folder
        self.interfaces = {name: f"{cluster.bridge}-{name}"[:15] for name in cluster.hosts}
        self._keys = {}

    def make_key(self, name):
        """A host's pair of keys; the public one is what the page has copied."""
        self._keys[f"{name.upper()}S_PUBLIC_KEY"] = self.run(name, MAKE_KEY).stdout.strip()

    def run(self, name, text):
        """Commands of the page on a host, the first that fails ends them."""
        own = {
            "/etc/wireguard/wg0.key": str(self._folder / f"{name}.key"),
            "wg0": self.interfaces[name],
            "198.51.100.7": self._cluster["alpha"].address,
            **self._keys,
        }
        for words, ours in own.items():
            text = text.replace(words, ours)
        return self._cluster[name].run(["env", f"PATH={PATH}", "sh", "-ec", text])

    def make_interface(self, name, stack):
        """A host's end of the tunnel; with it the process goes that may have made it."""
        try:
            self.run(name, MAKE_INTERFACE)
        except subprocess.CalledProcessError as error:
            if program("wireguard-go") is None:
                pytest.skip(f"needs wireguard-go: the kernel has none ({error.stderr.strip()})")
            self.run(name, INSTEAD)
        stack.callback(self.run, name, "ip link del wg0")


def set_up(cluster, folder, stack):
    """The tunnel: alpha can be reached, the others keep their way to it open.

    Returns:
        Name of each host to that of its interface.
    """
    recipe = Recipe(cluster, folder)
    for name in cluster.hosts:
        recipe.make_key(name)
        recipe.make_interface(name, stack)
    recipe.run("alpha", ALPHA)
    recipe.run("beta", BETA)
    recipe.run("gamma", BETA.replace("10.99.0.2/", "10.99.0.3/"))
    return recipe.interfaces


def test_the_recipe_has_a_part_for_each_kind_of_node():
    """Which is what the test below runs."""
    assert MAKE_INTERFACE.startswith("ip link add wg0 type wireguard ")
    assert "listen-port" in ALPHA
    assert "persistent-keepalive" in BETA
    assert BETA.count("10.99.0.2/") == 1


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
