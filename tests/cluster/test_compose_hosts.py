"""The commands of the Compose file train on three hosts of unequal speed; Prometheus sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack

import pytest
import yaml

from hetero_hvd.deploy.compose import AGENTS, DRIVER
from tests.deploy.containers import free_ports, local_environment, with_words
from tests.deploy.test_compose import OURS, SCRIPT, written

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(240)]


class Service:
    """A service as a local process; its volumes are the folders beside compose.yaml."""

    def __init__(self, content, folder, *enter):
        self._content = content
        self._enter = enter
        parts = [volume.split(":") for volume in content["volumes"]]
        self._folders = {there: str(folder / here) for here, there, *_ in parts}
        self._folders["/tmp"] = str(folder / "tmp")  # noqa: S108 - of the container alone
        self._work = folder / "workspace"
        self._work.mkdir(exist_ok=True)
        self._env = local_environment(folder) | content.get("environment", {})
        for there, here in self._folders.items():
            if there.startswith("/workspace/"):
                shutil.copy(here, self._work)
        self.log = folder / f"{content['networks']['job']['ipv4_address']}.txt"

    def start(self):
        """Its command."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._here(self._content["command"]),
                cwd=self._work,
                env=self._env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def is_healthy(self):
        """What its health check says."""
        kind, *words = self._content["healthcheck"]["test"]
        assert kind == "CMD"
        asked = subprocess.run(self._here(words), env=self._env, capture_output=True, check=False)
        return asked.returncode == 0

    def kill(self):
        """End it, with all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _here(self, words):
        names = "|".join(re.escape(path) for path in sorted(self._folders, reverse=True))
        pattern = rf"(?<![A-Za-z0-9/.])({names})(?![A-Za-z0-9])"
        plain = [word.replace("$$", "$") for word in words]
        here = [re.sub(pattern, lambda found: self._folders[found[1]], word) for word in plain]
        return [*self._enter, *here]


def in_here(folder, cluster):
    """The services on hosts of this machine: their addresses, and ports that are free."""
    ports = dict(zip(("9388", "9389", "8080"), map(str, free_ports(3)), strict=True))
    addresses = {address: cluster[name].address for name, (address, _) in AGENTS.items()}
    words = ports | addresses | {DRIVER: cluster.gateway}
    content = yaml.safe_load((folder / "compose.yaml").read_text())
    nodes = yaml.safe_load((folder / "nodes.yaml").read_text())
    nodes["job"]["cluster_key_file"] = str(folder / "keys" / "cluster.key")
    nodes["job"]["http_token_file"] = str(folder / "keys" / "token")
    (folder / "nodes.yaml").write_text(yaml.safe_dump(with_words(nodes, ports)))
    file = folder / "monitoring" / "prometheus.yml"
    text = json.dumps(with_words(json.loads(file.read_text()), words))
    file.write_text(text.replace("/keys/", f"{folder}/keys/"))
    return with_words(content, words)["services"]


class Watcher(Service):
    """The service `prometheus`, on one of the hosts, where its port is free.

    Args:
        host: There.
        content: Of the service.
        folder: Of compose.yaml.
    """

    def __init__(self, host, content, folder):
        super().__init__(content, folder, *host.enter(), "prometheus")  # the image's entry point
        self._url = f"http://{host.address}:9090/api/v1/"

    def asked(self, path, **parameters):
        """What its API answers; nothing while it starts."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own
                return json.load(answer)["data"]
        except urllib.error.URLError:
            return {}

    def found(self, query):
        """Value by target."""
        result = self.asked("query", query=query).get("result", ())
        return {one["metric"]["instance"]: float(one["value"][1]) for one in result}

    def wait_for(self, query, expected, driver):
        """Until that is found, while the job goes on."""
        deadline = time.monotonic() + 60
        while (found := self.found(query)) != expected:
            assert time.monotonic() < deadline, (query, found, self.log.read_text())
            assert driver.process.poll() is None, (query, found, driver.log.read_text())
            time.sleep(0.1)


def check_what_it_scrapes(watcher, driver, services):
    """The driver, and each agent's node, all with the token; no rule that it cannot evaluate."""
    agents = [services[name]["command"] for name in AGENTS]
    targets = {f"{w[w.index('--address') + 1]}:{w[w.index('--port') + 1]}" for w in agents}
    page = urllib.parse.urlsplit(services["driver"]["healthcheck"]["test"][-1]).netloc
    watcher.wait_for("up", dict.fromkeys({*targets, page}, 1.0), driver)
    watcher.wait_for("hetero_hvd_run_active", {page: 1.0}, driver)
    groups = watcher.asked("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert not watcher.asked("targets")["droppedTargets"]


@pytest.mark.matrix
def test_the_commands_train_on_three_hosts(tmp_path, virtual_cluster):
    """With the quotas of the file; health checks succeed, and the job ends 0."""
    folder = tmp_path / "c"
    content = written(folder, "--script", str(SCRIPT), command=("train.py", "8", "$HOME", "a b"))
    quotas = {name: round(100 * content["services"][name]["cpus"]) for name in AGENTS}
    cluster = virtual_cluster(quotas)
    services = in_here(folder, cluster)
    made = {
        name: Service(services[name], folder, *(cluster[name].enter() if name in AGENTS else ()))
        for name in OURS
    }
    if has_prometheus := shutil.which("prometheus") is not None:
        made["prometheus"] = Watcher(cluster["alpha"], services["prometheus"], folder)
    wait = folder / "workspace" / "wait"
    wait.touch()
    with ExitStack() as stack:
        for service in made.values():
            service.start()
            stack.callback(service.kill)
        while not made["driver"].is_healthy():
            assert made["driver"].process.poll() is None, made["driver"].log.read_text()
        if has_prometheus:
            check_what_it_scrapes(made["prometheus"], made["driver"], services)
        wait.unlink()
        assert made["driver"].process.wait(200) == 0, made["driver"].log.read_text()
        said = made["driver"].log.read_text()
        assert "was told ['$HOME', 'a b']" in said
        assert "3 workers train together" in said
        assert all(made[name].is_healthy() for name in AGENTS)
        for name in AGENTS:
            made[name].process.send_signal(signal.SIGTERM)
        assert [made[name].process.wait(45) for name in AGENTS] == [0, 0, 0]
