"""Nodes that do not reach each other as Gloo needs it are named, and the others train.

Firewalls are iptables of the hosts; beta has the higher address, so Gloo has it call alpha.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
needs_iptables = pytest.mark.skipif(
    shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin") is None, reason="needs iptables"
)
SCRIPT = Path(__file__).with_name("join.py")
HOSTS = {"alpha": 100, "beta": 60, "gamma": 60}
LISTEN = """
import json, sys, msgspec
from hetero_hvd.worker.session.route_probe import RouteProbe
print(msgspec.json.encode(RouteProbe().listen(sys.argv[1])).decode(), flush=True)
sys.stdin.read()
"""
REACH = """
import sys, msgspec
from hetero_hvd.messages import GlooAddress
from hetero_hvd.worker.session.route_probe import try_to_reach
print(try_to_reach(msgspec.json.decode(sys.argv[1], type=GlooAddress)))
"""
RUN = """
import sys
from hetero_hvd.core.diagnosis import stall
stall.STALL_SECONDS = 2.0  # instead of 10
from hetero_hvd.driver.membership import admission
admission.RETURN_SECONDS = admission.MAX_RETURN_SECONDS = 3.0  # instead of 60 and more
from hetero_hvd.cli import main
sys.exit(main(sys.argv[1:]))
"""
INNER = "10.1.0.5"
"""Of a network behind address translation: no other host has a way there."""


@contextmanager
def rule(host, chain, *words):
    """A rule of a host's firewall; the name of a chain is `INPUT` or `OUTPUT`."""
    host.run(["iptables", "-I", chain, "-p", "tcp", *words])
    try:
        yield
    finally:
        host.run(["iptables", "-D", chain, "-p", "tcp", *words])


@contextmanager
def inner_address(*hosts):
    """These hosts have an interface with the same private address."""
    for host in hosts:
        host.run(["ip", "link", "add", "inner0", "type", "bridge"])
        host.run(["ip", "addr", "add", f"{INNER}/32", "dev", "inner0"])
        host.run(["ip", "link", "set", "inner0", "up"])
    try:
        yield
    finally:
        for host in hosts:
            host.run(["ip", "link", "del", "inner0"])


def high(host, action):
    """Only the ports that programs choose are closed to a host; ssh is open."""
    return ("-s", host.address, "--dport", "1024:65535", "--syn", "-j", *action)


DROP = ("DROP",)
RESET = ("REJECT", "--reject-with", "tcp-reset")
KINDS = {
    "open": (lambda *_: ExitStack(), "eth0", ""),
    "closed in the direction that nobody needs": (
        lambda alpha, beta: rule(beta, "INPUT", *high(alpha, DROP)),
        "eth0",
        "",
    ),
    "high ports are dropped": (
        lambda alpha, beta: rule(alpha, "INPUT", *high(beta, DROP)),
        "eth0",
        "packets are dropped",
    ),
    "high ports are rejected": (
        lambda alpha, beta: rule(alpha, "INPUT", *high(beta, ("REJECT",))),
        "eth0",
        "refused",
    ),
    "high ports are reset": (
        lambda alpha, beta: rule(alpha, "INPUT", *high(beta, RESET)),
        "eth0",
        "refused",
    ),
    "nothing gets out": (
        lambda alpha, beta: rule(beta, "OUTPUT", "-d", alpha.address, "-j", "DROP"),
        "eth0",
        "packets are dropped",
    ),
    "answers are lost": (
        lambda alpha, beta: rule(alpha, "OUTPUT", "-d", beta.address, "-j", "DROP"),
        "eth0",
        "packets are dropped",
    ),
    "an address behind translation": (
        lambda alpha, _: inner_address(alpha),
        "inner0",
        "packets are dropped|route|unreachable|refused",
    ),
    "one private address on both": (
        inner_address,
        "inner0",
        "another machine that has this address",
    ),
}


WITHOUT_FIREWALL = ("open", "an address behind translation", "one private address on both")
"""These need no iptables."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in WITHOUT_FIREWALL else needs_iptables)
        for kind in KINDS
    ],
)
def test_every_kind_of_broken_route_is_found(virtual_cluster, kind):
    """As Gloo would meet it, in seconds and in words."""
    cluster = virtual_cluster(HOSTS)
    alpha, beta = cluster["alpha"], cluster["beta"]
    make, interface, expected = KINDS[kind]
    with make(alpha, beta):
        command = [*alpha.enter(), sys.executable, "-c", LISTEN, interface]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as listener:
            gloo = listener.stdout.readline()
            found = beta.run([sys.executable, "-c", REACH, gloo]).stdout.strip()
            listener.stdin.close()
    if expected:
        assert any(word in found for word in expected.split("|")), found
    else:
        assert found == ""


class RoutedJob:
    """A job over the three hosts.

    Args:
        folder: For its files.
        cluster: The hosts.
        interfaces: Name of a host to its interface for Gloo, where it is another one.
        job: Settings.
    """

    def __init__(self, folder, cluster, interfaces=None, **job):
        nodes = [
            host.node(slots=1, devices=[], directory=str(folder))
            | ({"interface": interfaces[name]} if interfaces else {})
            for name, host in cluster.hosts.items()
        ]
        settings = {"balance": False, "remember": False, "checkpoint_seconds": 0} | job
        (folder / "nodes.yaml").write_text(json.dumps({"job": settings, "nodes": nodes}))
        self.log = folder / "job.txt"
        vector = [sys.executable, "-c", RUN, "run", "--output", "out", "--", str(SCRIPT)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(vector, cwd=folder, stdout=output, stderr=output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(40)
        self.process.kill()
        self.process.wait()

    def wait_for(self, pattern, *, after=0, seconds=90):
        """The end of the first place of the log, behind another one, that has this pattern."""
        deadline = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.log.read_text(), after)) is None:
            assert time.monotonic() < deadline, f"{pattern}: {self.log.read_text()}"
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        return found.end()


@needs_iptables
@pytest.mark.process
def test_the_smaller_side_stays_out_until_the_route_is_mended(virtual_cluster, tmp_path):
    """At the start, while it trains, and when it comes back; the others go on meanwhile."""
    cluster = virtual_cluster(HOSTS)
    beta, gamma = cluster["beta"], cluster["gamma"]
    refused = (
        rf"gamma:0 is refused \(gamma \({gamma.address}\) cannot reach beta at {beta.address}, "
        r"TCP port \d+: (refused|no answer).*open TCP ports \d+-\d+ of beta to gamma"
    )
    unused = rule(gamma, "INPUT", *high(beta, DROP))
    with unused, RoutedJob(tmp_path, cluster, min_np=2) as job:
        with rule(beta, "INPUT", *high(gamma, ("REJECT",))):
            at = job.wait_for(refused)
            at = job.wait_for("2 workers train together: alpha:0, beta:0", after=at)
            at = job.wait_for(refused, after=at)  # as a newcomer that came back too soon
        at = job.wait_for("3 workers train together", after=at)
        with rule(beta, "INPUT", "-s", gamma.address, "-j", "DROP"):  # what is open, too
            at = job.wait_for("nobody has stepped", after=at)
            at = job.wait_for(refused, after=at)
            at = job.wait_for("2 workers train together: alpha:0, beta:0", after=at)
            at = job.wait_for("training goes on", after=at)
        job.wait_for("3 workers train together", after=at)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["replicas_equal"] in (True, None)


@needs_iptables
@pytest.mark.process
def test_a_job_that_needs_both_sides_ends_at_its_start(virtual_cluster, tmp_path):
    """One line with the pair, and exit code 75: the route may be mended."""
    cluster = virtual_cluster(HOSTS)
    alpha, beta = cluster["alpha"], cluster["beta"]
    with rule(alpha, "INPUT", *high(beta, DROP)), RoutedJob(tmp_path, cluster, min_np=3) as job:
        assert job.process.wait(90) == 75
    (line,) = [line for line in job.log.read_text().splitlines() if line.startswith("hetero-hvd:")]
    assert "2 workers reach each other, min_np is 3: beta" in line
    assert f"cannot reach alpha at {alpha.address}" in line
