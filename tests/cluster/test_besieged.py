"""An attacker in the network, on all ports of a driver that trains."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from hetero_hvd.security.connection_limiter import MAX_STRANGERS

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(120)]
SCRIPT, ATTACKER = (Path(__file__).with_name(name) for name in ("join.py", "attacker.py"))
TOKEN = "t" * 20


class Job:
    """A job with one worker here, whose driver listens in the network, and a token for looking."""

    def __init__(self, folder, cluster):
        self.folder = folder
        self.log = folder / "job.txt"
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        self._job = {"driver_address": cluster.gateway, "http_address": cluster.gateway}
        self._job |= {"http_token_file": "token", "balance": False, "checkpoint_seconds": 0}
        self._job |= {"remember": False}
        self.list_nodes("local")
        vector = [sys.executable, "-m", "hetero_hvd", "run", "--output", "out", "--", str(SCRIPT)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(vector, cwd=folder, stdout=output, stderr=output)

    def list_nodes(self, *names):
        """Write nodes.yaml."""
        nodes = [{"name": name, "slots": 1, "devices": []} for name in names]
        content = json.dumps({"job": self._job, "nodes": nodes})
        (self.folder / "nodes.yaml").write_text(content)

    def wait_for(self, text):
        """Until it is on the console."""
        deadline = time.monotonic() + 60
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, f"{text}: {self.log.read_text()}"
            time.sleep(0.05)

    def status(self):
        """What the driver says of itself."""
        page = re.search(r"page: (http://\S+)/ ", self.log.read_text())[1]
        request = urllib.request.Request(f"{page}/status")  # noqa: S310 - our own
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def ports(self):
        """Where the driver listens."""
        connections = psutil.Process(self.process.pid).net_connections()
        return sorted({c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN})


def test_an_attacker_changes_nothing_but_counters(virtual_cluster, tmp_path):
    """Pickles, orders, floods, half-open connections: nothing runs, nobody leaves, all is counted.

    While they are held a worker joins: it gets through to the channel and to the rendezvous.
    """
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    job, marker = Job(tmp_path, cluster), tmp_path / "boom"
    job.wait_for("[local:0] takes part")
    before, ports = job.status(), job.ports()
    assert len(ports) == 3  # page, channel, rendezvous
    command = [sys.executable, str(ATTACKER), "besiege", cluster.gateway, str(marker)]
    attacker = subprocess.Popen(
        [*cluster["beta"].enter(), *command, *map(str, ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert attacker.stdout.readline() == b"besieged\n"
        job.list_nodes("local", "late")
        job.wait_for("[late:0] takes part")
        after = job.status()
        num_open = psutil.Process(job.process.pid).num_fds()
    finally:
        attacker.kill()
        attacker.communicate()
        job.process.send_signal(signal.SIGTERM)
        code = job.process.wait(40)
    assert code == 143, job.log.read_text()
    assert not marker.exists()
    assert after["step"] > before["step"]
    assert after["workers"]["local:0"] == before["workers"]["local:0"]
    assert num_open < 2 * MAX_STRANGERS + 100
    for port in ("channel", "rendezvous", "http"):
        assert after["refused"][port] - before["refused"][port] > 100, after["refused"]
    assert "Traceback" not in (tmp_path / "out" / "logs" / "driver.log").read_text()
