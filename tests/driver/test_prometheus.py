"""A real Prometheus scrapes a real run and a real queue, and every query of ours finds data."""

import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hetero_hvd.monitoring.dashboards import ANNOTATIONS, VARIABLES
from hetero_hvd.monitoring.files import WatchedPlaces
from hetero_hvd.monitoring.gpu_rules import gpu_rules
from hetero_hvd.monitoring.panels import PANELS
from tests.fake_nvml.library import build, environment
from tests.hub.queue.queue_rig import QueueHub
from tests.leftovers import wait_until
from tests.monitoring.prometheus_rig import Prometheus, free_port

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus"),
]


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
    """Starts Prometheus on what `hetero-hvd deploy monitoring` writes."""
    started = []

    def start(driver):
        """Finds the run twice: at its driver, and in the folder above its own."""
        hub = f"http://127.0.0.1:{hub_port}"
        watched = WatchedPlaces(driver=driver, runs=str(tmp_path), hub=hub)
        found = Prometheus(tmp_path, watched, targets=[f"127.0.0.1:{node_port}"])
        started.append(found)
        return found

    yield start
    for each in started:
        each.close()


NOT_TOLD = ("hetero_hvd_evaluation", "hetero_hvd_logged")
"""The script does neither."""

STEPS = "hetero_hvd_step_duration_seconds_bucket"
ONLY_AT_THE_END = ("hetero_hvd_run_active", "hetero_hvd_run_exit_code")
"""Alerts on these have no data while a run goes on."""


def test_every_query_finds_data(start_job, prometheus):
    """Panels, variables, annotations and rules; alerts without their threshold.

    The last scrape sees how the run has ended.
    """
    job = start_job("--progress-seconds", "0.2", names=("alpha", "beta"), script=("1000",))
    watcher = prometheus(re.match(r"https?://[^/]+", job._url)[0])
    job.wait_for(r"step [1-9]\d*  epoch", 60)
    queries = [one.expr for panels in PANELS.values() for panel in panels for one in panel.queries]
    asked = [one.query for one in VARIABLES.values()]
    queries += [re.match(r"\w+\((.*?)(, \w+)?\)$", query)[1] for query in asked]
    queries += [query.rpartition(" > ")[0] for query in ANNOTATIONS.values()]
    rules = (job.folder / "stack" / "rules.yml").read_text()
    shipped = re.findall(r"expr: (.*)", rules)
    (of_gpus,) = gpu_rules()["groups"]
    shipped += [rule["expr"] for rule in of_gpus["rules"]]
    shipped = [q for q in shipped if not any(name in q for name in ONLY_AT_THE_END)]
    queries += [re.sub(r" > [\d.* ]+( and .*)?$", "", q) for q in shipped]
    watcher.wait_for("hetero_hvd_run_info", "run", ["out"])
    (run_id,) = watcher.found("hetero_hvd_run_info", "run_id")
    own = {"$run": "out", "$worker": "beta:0", "$node": ".*", "$1": "$1", "$__rate_interval": "1m"}
    left = {re.sub(r"\$\w+", lambda found: own[found[0]], query) for query in queries}

    def all_found():
        found = {q for q in left if watcher.found(q)}
        left.difference_update(found)
        return all(query.startswith(NOT_TOLD) for query in left)

    try:
        wait_until(all_found, 45, "data")
    except AssertionError as error:
        raise AssertionError(f"no data: {sorted(left)}") from error
    groups = watcher.asked("rules")["groups"]
    health = {rule["health"] for group in groups for rule in group["rules"]}
    assert health == {"ok"}
    assert not watcher.found('{exported_run_id!=""} or {exported_run!=""}')
    assert watcher.found('up{run="out"} == 1', "run") == ["out"]
    assert watcher.of_itself("prometheus_sd_http_failures_total") == 0
    told = watcher.asked("query_exemplars", query=STEPS, start=0, end=time.time())
    labels = [one["labels"] for series in told for one in series["exemplars"]]
    assert {one["worker"] for one in labels} <= {"alpha:0", "beta:0"}
    assert all(int(one["step"]) > 0 for one in labels)
    assert labels
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    for name, last in zip(ONLY_AT_THE_END, ("0", "143"), strict=True):
        query = f"last_over_time({name}[5m])"
        (found,) = watcher.asked("query", query=query)["result"]
        assert (found["metric"]["run_id"], found["value"][1]) == (run_id, last)
