"""A real Prometheus scrapes a real run and a real queue, and every query of ours finds data."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.monitoring.dashboards import ANNOTATIONS, PANELS, VARIABLES
from hetero_hvd.monitoring.files import stack_files
from hetero_hvd.monitoring.gpu_rules import gpu_rules
from tests.fake_nvml.library import build, environment
from tests.hub.queue.queue_rig import QueueHub
from tests.leftovers import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus"),
]


def free_port():
    """A port that nobody has now."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


def asked(port, path, **parameters):
    """What Prometheus' API answers."""
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


@pytest.fixture
def node_port(tmp_path):
    """A node's exporter, on a machine with two GPUs that are not there."""
    port = free_port()
    vector = [sys.executable, "-m", "hetero_hvd.probes.machine.node_metrics"]
    vector += ["--node", "alpha", "--port", str(port)]
    exporter = subprocess.Popen(vector, env=environment(build(tmp_path)))
    yield port
    exporter.terminate()
    exporter.wait()


@pytest.fixture
def hub_port(tmp_path):
    """A hub with a queue, to which a job has come; its nodes are not those of the run."""
    (tmp_path / "hub").mkdir()
    port = free_port()
    hub = QueueHub(
        tmp_path / "hub", [{"name": "delta", "devices": []}], words=("--http-port", str(port))
    )
    (hub.folder / "tree" / "train.py").write_text("print('done')")
    hub.start()
    hub.submit("one")
    yield port
    hub.close()


@pytest.fixture
def prometheus(tmp_path, node_port, hub_port):
    """Starts Prometheus on what `hetero-hvd stack` writes, with faster scrapes; gives its port."""
    started = []

    def start(driver):
        hub = f"http://127.0.0.1:{hub_port}"
        write_folder(tmp_path / "stack", FolderContents(files=stack_files(driver=driver, hub=hub)))
        file = tmp_path / "stack" / "prometheus.yml"
        config = json.loads(file.read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        own = {"job_name": "n", "static_configs": [{"targets": [f"127.0.0.1:{node_port}"]}]}
        config["scrape_configs"].append(own)
        file.write_text(json.dumps(config))
        port = free_port()
        words = (f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}")
        vector = ["prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"]
        with (tmp_path / "prometheus.log").open("w") as log:
            started.append(subprocess.Popen(vector, stdout=log, stderr=log))
        return port

    yield start
    for process in started:
        process.terminate()
        process.wait()


ONLY_AT_THE_END = ("hetero_hvd_run_active", "hetero_hvd_run_exit_code")
"""Alerts on these have no data while a run goes on."""


def run_id(port):
    """Of the only run, as soon as it was scraped."""
    found = []

    def is_known():
        try:
            found[:] = asked(port, "query", query="hetero_hvd_run_info")["result"]
        except urllib.error.URLError:
            return False  # it is starting
        return bool(found)

    wait_until(is_known, 45, "the first scrape")
    assert found[0]["metric"]["run"] == "out"
    return found[0]["metric"]["run_id"]


def test_every_query_finds_data(start_job, prometheus):
    """Panels, variables, annotations and rules; alerts without their threshold.

    The last scrape sees how the run has ended.
    """
    job = start_job("--progress-seconds", "0.2", names=("alpha", "beta"), script=("1000",))
    port = prometheus(re.match(r"https?://[^/]+", job._url)[0])
    job.wait_for(r"step [1-9]\d*  epoch", 60)
    queries = [query for panels in PANELS.values() for _, query, _, _ in panels]
    queries += [re.match(r"label_values\((.*), \w+\)$", q)[1] for q in VARIABLES.values()]
    queries += [query.rpartition(" > ")[0] for query in ANNOTATIONS.values()]
    rules = (job.folder / "stack" / "rules.yml").read_text()
    shipped = re.findall(r"expr: (.*)", rules)
    (of_gpus,) = gpu_rules()["groups"]
    shipped += [rule["expr"] for rule in of_gpus["rules"]]
    shipped = [q for q in shipped if not any(name in q for name in ONLY_AT_THE_END)]
    queries += [re.sub(r" > [\d.* ]+$", "", q) for q in shipped]
    own = {"$run": run_id(port), "$worker": "beta:0", "$node": ".*", "$1": "$1"}
    left = {re.sub(r"\$\w+", lambda found: own[found[0]], query) for query in queries}

    def all_found():
        found = {q for q in left if asked(port, "query", query=q)["result"]}
        left.difference_update(found)
        return not left

    try:
        wait_until(all_found, 45, "data")
    except AssertionError as error:
        raise AssertionError(f"no data: {sorted(left)}") from error
    groups = asked(port, "rules")["groups"]
    health = {rule["health"] for group in groups for rule in group["rules"]}
    assert health == {"ok"}
    assert not asked(port, "query", query='{exported_run_id!=""}')["result"]
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    for name, last in zip(ONLY_AT_THE_END, ("0", "143"), strict=True):
        (found,) = asked(port, "query", query=f"last_over_time({name}[5m])")["result"]
        assert (found["metric"]["run_id"], found["value"][1]) == (own["$run"], last)
