"""`hardware -f` on real hosts, over ssh."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.cluster


@pytest.mark.process
def test_all_hosts_are_asked_at_once(virtual_cluster, tmp_path):
    """Each says what it is made of and what it does; one that is not there costs no other one."""
    hosts = virtual_cluster({"alpha": 100, "beta": 50})
    nodes = [hosts["alpha"].node(devices=[], slots=1), hosts["beta"].node(devices=[], slots=1)]
    nodes += [hosts["beta"].node(port=9) | {"name": "gone"}]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    vector = [sys.executable, "-m", "hetero_hvd", "hardware", "-f", "nodes.yaml", "--json"]
    done = subprocess.run(vector, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    alpha, beta, gone = json.loads(done.stdout)["nodes"]
    for node in (alpha, beta):
        assert node["memory"]["total_bytes"] == node["sample"]["memory_total_bytes"]
        assert 0 <= node["sample"]["cpu_use_ratio"] <= 1
    assert (alpha["processor"]["allowed_cores"], beta["processor"]["allowed_cores"]) == (1, 0.5)
    assert gone["failure"]
