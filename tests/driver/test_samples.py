"""A real job: what its nodes do is published, shown, scraped and recorded."""

import os
import re
import signal
import sqlite3
import urllib.request
from contextlib import closing

import pytest

from hetero_hvd.cli import main
from hetero_hvd.messages import NodeEquipped, NodeSampled
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE
from hetero_hvd.run.records.reader import read_record
from tests.fake_nvml.library import build, environment
from tests.leftovers import wait_until

pytestmark = pytest.mark.process


def fetched(url):
    """A page of the driver."""
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
        return answer.read().decode()


@pytest.fixture
def gpus(tmp_path_factory, monkeypatch):
    """Two that are not there; nobody else shares their samples."""
    own = environment(build(tmp_path_factory.mktemp("nvml")))
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML", FOLDER_VARIABLE):
        monkeypatch.setenv(name, own[name])


@pytest.mark.usefixtures("gpus")
def test_nodes_are_sampled_while_they_train(start_job, tmp_path, capsys):
    """Both nodes of one machine, under their names; who uses a GPU is a line of `top`.

    The worker whose supervisor has the sampler is killed: the samples go on.
    """
    job = start_job("--progress-seconds", "0.2", names=("alpha", "beta"), script=("1000",))
    page = re.match(r"https?://[^/]+", job._url)[0]

    def are_told():
        found = fetched(f"{page}/metrics")
        nodes = {f'hetero_hvd_node_load{{node="{node}"' for node in ("alpha", "beta")}
        return 'device="0",node="beta"' in found and all(node in found for node in nodes)

    def newest():
        found = fetched(f"{page}/metrics")
        name = 'hetero_hvd_node_sample_timestamp_seconds{node="alpha"'
        (line,) = (line for line in found.splitlines() if line.startswith(name))
        return float(line.split()[-1])

    job.wait_for(r"step [1-9]\d*  epoch", 60)
    wait_until(are_told, 20, "both nodes' samples")
    assert main(["top", str(tmp_path / "out"), "--once"]) == 0
    said = capsys.readouterr().out
    assert "gpu 0: Fake H100  87%" in said
    assert re.search(r"    gpu 0: pid \d+ ", said)
    os.kill(job.pid_of("alpha:0"), signal.SIGKILL)
    before = newest()
    wait_until(lambda: newest() > before + 1, 20, "samples after a worker's end")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    record = read_record(tmp_path / "out")
    kinds = [event for _, event in record.events if isinstance(event, NodeEquipped | NodeSampled)]
    assert {event.node for event in kinds} == {"alpha", "beta"}
    assert all(isinstance(event, NodeEquipped) for event in kinds)
    rows = {(row["node"], row["device"]) for row in record.samples}
    assert rows == {(node, device) for node in ("alpha", "beta") for device in (-1, 0, 1)}


def test_nobody_samples_where_nothing_is_wanted(start_job, tmp_path, monkeypatch):
    """`sample_seconds: 0`: there is not even a folder for samples."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "samples"))
    job = start_job(names=("alpha",), script=("5",), sample_seconds=0)
    assert job.wait() == 0
    assert not (tmp_path / "samples").exists()
    with closing(sqlite3.connect(tmp_path / "out" / "run.sqlite")) as catalogue, catalogue:
        assert catalogue.execute("SELECT COUNT(*) FROM samples").fetchone() == (0,)
    catalogue.close()
