"""The virtual hosts are what the tests of several hosts take them for."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import is_running
from tests.kit.virtual_cluster import LOGIN_HOME, missing_for_a_cluster, running_cluster

pytestmark = pytest.mark.cluster
BUSY = """
import time
wall, cpu = time.perf_counter(), time.process_time()
while time.perf_counter() - wall < 0.5:
    pass
print((time.process_time() - cpu) / (time.perf_counter() - wall))
"""


@pytest.fixture
def cluster(virtual_cluster):
    """Two hosts, one of half the speed."""
    return virtual_cluster({"alpha": 100, "beta": 50})


def over_ssh(host, command, **more):
    """What a shell command prints on a host."""
    argv = host.ssh(command)
    return subprocess.run(argv, check=True, capture_output=True, text=True, **more).stdout


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_command_runs_over_ssh(cluster, name):
    """Each host is reached by its own key and address, under its own name."""
    assert over_ssh(cluster[name], "hostname") == f"{name}\n"


def test_hosts_see_each_other_and_the_driver(cluster):
    """Any two hosts reach each other over TCP, and both reach this machine."""
    greet = "import socket, sys; print(socket.create_connection((sys.argv[1], 22)).recv(4))"
    for one, other in (("alpha", "beta"), ("beta", "alpha")):
        answer = cluster[one].run([sys.executable, "-c", greet, cluster[other].address])
        assert answer.stdout == "b'SSH-'\n"
    with socket.create_server((cluster.gateway, 0)) as server:
        port = str(server.getsockname()[1])
        reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])))"
        cluster["alpha"].run([sys.executable, "-c", reach, cluster.gateway, port])
        server.settimeout(5)
        connection, peer = server.accept()
        connection.close()
    assert peer[0] == cluster["alpha"].address


def test_the_quota_bites_over_ssh_too(cluster):
    """A host of 50 percent gives a busy process about half a core, and counts the throttling."""
    before = cluster["beta"].throttled_periods()
    used = float(over_ssh(cluster["beta"], f"{sys.executable} -", input=BUSY))
    assert 0.05 < used < 0.6
    assert cluster["beta"].throttled_periods() > before


def test_the_probe_sees_the_quota(cluster):
    """The number of cores that a worker reports there is what the host really gives."""
    ask = "from hetero_hvd.probes.machine.hardware import allowed_cores; print(allowed_cores())"
    checkout = Path(__file__).parents[2]
    assert cluster["beta"].run([sys.executable, "-c", ask], cwd=checkout).stdout == "0.5\n"


def test_a_bare_host_is_bare_whatever_home_this_process_has(tmp_path, monkeypatch):
    """A container of CI has a HOME of its own; a login begins in that of the password file."""
    if missing := missing_for_a_cluster():
        pytest.skip(missing)
    for name in ("home", "folder"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with running_cluster({"gamma": 100}, folder=tmp_path / "folder", is_bare=True) as cluster:
        assert over_ssh(cluster["gamma"], "pwd; ls") == f"{LOGIN_HOME}\n"


def test_nothing_is_left_behind(tmp_path):
    """After a cluster its processes, namespaces, links and control groups are gone."""
    if missing := missing_for_a_cluster():
        pytest.skip(missing)
    with running_cluster({"gamma": 100}, folder=tmp_path) as cluster:
        host = cluster["gamma"]
        with subprocess.Popen(host.ssh("echo $$; exec sleep 600"), stdout=subprocess.PIPE) as ssh:
            pid = int(ssh.stdout.readline())
            assert is_running(pid)
            ssh.kill()
    left = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    assert not is_running(pid)
    assert not host.cgroup.exists()
    assert not Path("/run/netns", host.namespace).exists()
    assert f" {cluster.bridge}" not in left
