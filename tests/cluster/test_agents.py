"""Nodes start their agents and train, without ssh and without a word in nodes.yaml."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from hetero_hvd.security.certificates import Authority
from hetero_hvd.security.cluster_key import make_key
from hetero_hvd.security.secret_files import write_secret
from hetero_hvd.security.tls import client_context

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(180)]
SCRIPT = Path(__file__).with_name("join.py")
PORT_OF_BETA = 9400
MAX_JOIN_SECONDS = 30.0
"""Twice what is promised of a quiet machine, so that a busy one does not fail the test."""

SHORT_LIVES = """
import sys
from hetero_hvd.discovery import advert
advert.LIFETIME_SECONDS = %.1f  # instead of 45: what follows from it is shorter too
from hetero_hvd.discovery import registry as roster
roster.HOLD_DOWN_SECONDS = 2.0  # instead of 15
from hetero_hvd.agent import service
service.LEAVE_SECONDS = %.1f  # 10, or less where nobody will let the workers go
from hetero_hvd.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Scene:
    """A driver here and agents on virtual hosts; ends all that it has started."""

    def __init__(self, folder, cluster):
        self.folder = folder
        self.lifetime_seconds = 6.0
        self.leave_seconds = 10.0
        self.has_files = True
        self.key = folder / "cluster.key"
        make_key(self.key)
        authority = Authority.new()
        for name, *addresses in (("alpha", cluster["alpha"].address), ("beta",), ("driver",)):
            write_secret(folder / f"{name}.pem", authority.issue(name, *addresses))
        self.log = folder / "job.txt"
        self._cluster = cluster
        self._stack = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def agent(self, name, *more):
        """Start an agent, and give its process."""
        vector = [sys.executable, "-c", self._program, "agent", "--key-file", str(self.key)]
        vector += ["--tls-file", f"{name}.pem"] if self.has_files else []
        vector += ["--name", name, "--slots", "1", *more]
        return self._start([*self._cluster[name].enter(), *vector], self.folder / f"{name}.txt")

    def hub(self, host, *more):
        """Start a hub on a host, of whatever network."""
        vector = [sys.executable, "-c", self._program, "hub", "--key-file", str(self.key), *more]
        return self._start([*host.enter(), *vector], self.folder / "hub.txt")

    def start_on(self, name, vector):
        """Start a program on a host."""
        return self._start([*self._cluster[name].enter(), *vector], self.folder / "more.txt")

    def list_nodes(self, *nodes):
        """Write nodes.yaml; a job that runs follows it."""
        content = {"job": self._job, "nodes": nodes}
        (self.folder / "nodes.yaml").write_text(json.dumps(content))

    def drive(self, *nodes, output="out", on=None, **job):
        """Start a job that discovers nodes, here or on a host."""
        self._job = {"discover": True, "cluster_key_file": str(self.key), "max_restarts": 100}
        self._job |= {"driver_address": self._cluster.gateway, "checkpoint_seconds": 0}
        self._job |= {"tls_file": "driver.pem"} if self.has_files else {}
        self._job |= {"balance": False, "remember": False} | job
        self.list_nodes(*nodes)
        vector = [sys.executable, "-c", self._program, "run", "--output", output]
        log = self.log if output == "out" else self.folder / f"{output}.txt"
        return self._start([*(on.enter() if on else ()), *vector, "--", str(SCRIPT)], log)

    @property
    def _program(self):
        return SHORT_LIVES % (self.lifetime_seconds, self.leave_seconds)

    def _start(self, vector, log):
        with log.open("ab") as output:
            process = subprocess.Popen(vector, cwd=self.folder, stdout=output, stderr=output)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def wait_for(self, text, *, times=1, seconds=60, log=None):
        """Until the job, or whose log it is, has said so."""
        log = log or self.log
        deadline = time.monotonic() + seconds
        while log.read_text().count(text) < times:
            assert time.monotonic() < deadline, f"{text} {times}: {log.read_text()}"
            time.sleep(0.05)

    def listed(self, on=None, folder=None):
        """What `hetero-hvd nodes --discover` shows, here or elsewhere."""
        command = [sys.executable, "-m", "hetero_hvd", "nodes", "--discover", "--json"]
        command = [*(on.enter() if on else ()), *command]
        nodes = json.loads(subprocess.check_output(command, cwd=folder or self.folder))
        return [node["name"] for node in nodes]

    def metrics(self, name, token):
        """A node's own metrics, from where the driver says that Prometheus finds them."""
        page = re.search(r"page: (http://\S+)/ ", self.log.read_text())[1]
        with urllib.request.urlopen(f"{page}/sd", timeout=10) as answer:  # noqa: S310 - our own
            targets = json.load(answer)
        (found,) = (entry for entry in targets if entry["labels"].get("node") == name)
        url = f"{found['labels']['__scheme__']}://{found['targets'][0]}/metrics"
        request = urllib.request.Request(url)  # noqa: S310
        request.add_header("Authorization", f"Bearer {token.read_text()}")
        context = client_context((self.folder / "driver.pem").read_bytes())
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return answer.read().decode()

    def step(self):
        """How many steps the job has applied."""
        url = re.search(r"status: (http://\S+)", self.log.read_text())[1]
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own
            return json.load(answer)["step"]

    def wait_for_steps(self, number, *, seconds=30):
        """Until the job has applied so many more, by those who are left."""
        goal, deadline = self.step() + number, time.monotonic() + seconds
        while self.step() < goal:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def first_step(self, name):
        """When its newest worker took part in a step first, on this machine's monotonic clock."""
        found = re.findall(rf"\[{name}:0\] takes part since (\S+)", self.log.read_text())
        return float(found[-1])


@pytest.fixture
def scene(virtual_cluster, tmp_path):
    """Two hosts."""
    with Scene(tmp_path, virtual_cluster({"alpha": 100, "beta": 50})) as made:
        yield made


def test_the_life_of_a_node_that_announces_itself(scene, capsys):
    """It joins within seconds, leaves in order after its good-bye, and silence is waited out.

    The job begins without any node. The first, which is not on the list of announced ones that are
    allowed, is put into nodes.yaml with `launcher: agent`, on a port of its own.
    Everything but what Horovod says goes through TLS.
    """
    driver = scene.drive(allow="alpha")
    scene.agent("beta", "--port", str(PORT_OF_BETA))
    scene.wait_for("waiting for agents: 0 workers of 1")
    address = scene._cluster["beta"].address
    listed = {"name": "beta", "address": address, "launcher": "agent", "port": PORT_OF_BETA}
    scene.list_nodes(listed | {"slots": 1})
    scene.wait_for("[beta:0] takes part")

    token = scene.folder / "token"
    token.write_text("t" * 20)
    token.chmod(0o600)
    began = time.monotonic()
    alpha = scene.agent("alpha", "--token-file", str(token))
    scene.wait_for("[alpha:0] takes part")
    seconds = scene.first_step("alpha") - began
    scene.wait_for("alpha announces itself: ")
    assert scene.listed() == ["beta", "alpha"]
    with capsys.disabled():
        sys.stdout.write(f" first step {seconds:.1f} s after the start of the agent ")
    assert seconds < MAX_JOIN_SECONDS
    assert 'hetero_hvd_node_cpu_use_ratio{node="alpha"}' in scene.metrics("alpha", token)

    alpha.send_signal(signal.SIGTERM)
    assert alpha.wait(30) == 0
    scene.wait_for("alpha:0 is no longer announced and leaves")
    scene.wait_for("alpha:0 has left")
    assert "alpha:0 exited" not in scene.log.read_text()

    alpha = scene.agent("alpha")
    scene.wait_for("starts: worker", times=2, log=scene.folder / "alpha.txt")
    alpha.kill()
    scene.wait_for("alpha:0: restart 1")  # its worker was lost, but the node may be back in time
    scene.wait_for("alpha:0 is no longer announced", times=2)

    driver.send_signal(signal.SIGTERM)
    assert driver.wait(40) == 143
    summary = json.loads((scene.folder / "out" / "summary.json").read_text())
    assert set(summary["workers"]) == {"alpha:0", "beta:0"}


@pytest.mark.matrix
def test_agents_that_stop_end_and_come_back_cost_the_job_nothing_but_time(scene):
    """One that does not answer costs its own worker only; the job outlives the restart of the last.

    A second job on the same slot is told whose it is, and gets it afterwards. Certificates follow
    from the cluster key.
    """
    scene.has_files = False
    scene.lifetime_seconds = 12.0  # the driver notices first that an agent does not answer
    scene.leave_seconds = 1.0
    driver = scene.drive()
    agents = {name: scene.agent(name) for name in ("alpha", "beta")}
    for name in agents:
        scene.wait_for(f"[{name}:0] takes part")

    agents["alpha"].send_signal(signal.SIGSTOP)  # its worker lives
    scene.wait_for("alpha:0 exited with code 255; the job was at step")
    scene.wait_for_steps(20)
    agents["alpha"].kill()
    scene.wait_for("alpha:0 is no longer announced and leaves")

    for number, kind in enumerate((signal.SIGKILL, signal.SIGTERM), start=2):
        agents["beta"].send_signal(kind)
        agents["beta"].wait(30)
        scene.wait_for("all members are lost at step", times=number - 1)
        agents["beta"] = scene.agent("beta")
        scene.wait_for("[beta:0] takes part", times=number)
    scene.wait_for("waiting for agents: 0 workers of 1, at most 600 s")

    other, second = scene.drive(output="second"), scene.folder / "second.txt"
    scene.wait_for("no free slot: job out (process ", log=second)
    scene.wait_for("beta:0: is tried again until it is free", log=second)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(40) == 143
    scene.wait_for("[beta:0] takes part", log=second)
    other.send_signal(signal.SIGTERM)
    assert other.wait(40) == 143
