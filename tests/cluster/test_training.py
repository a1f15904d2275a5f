"""Hosts with addresses of their own, reached over ssh, train one model together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
SCRIPT = Path(__file__).parents[1] / "driver" / "train.py"


def run_job(folder, nodes, *command):
    """Run a job over these nodes, with all of them or not at all; its output and its summary."""
    job = {"min_np": sum(node["slots"] for node in nodes)}
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"nodes": nodes, "job": job}))
    vector = [sys.executable, "-m", "hetero_hvd", "run", "--output", "out", "--", *command]
    done = subprocess.run(
        vector, cwd=folder, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out" / "summary.json").read_text())


def test_two_hosts_over_ssh_and_this_machine_train_together(virtual_cluster, tmp_path):
    """Two hosts, one with two slots, and a local slot: four equal replicas at the end."""
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    nodes = [
        cluster["alpha"].node(slots=2, devices=[], directory=str(tmp_path)),
        cluster["beta"].node(slots=1, devices=[], directory=str(tmp_path)),
        {"name": "local", "slots": 1, "devices": []},
    ]
    output, summary = run_job(tmp_path, nodes, str(SCRIPT), "3")
    assert set(summary["workers"]) == {"alpha:0", "alpha:1", "beta:0", "local:0"}
    assert len({worker["checksum"] for worker in summary["workers"].values()}) == 1
    assert summary["steps"] == 3 * 8
    for worker in summary["workers"]:
        assert f"[{worker}] the script is done" in output
    for host in (cluster["alpha"], cluster["beta"]):
        left = host.run(["ss", "-Htln"]).stdout.split("\n")
        assert sum(":22 " in line for line in left) == 1
        assert len([line for line in left if line]) == 1, "a listening socket is left"


def test_the_key_is_never_on_a_command_line(virtual_cluster, tmp_path):
    """What ssh and the supervisors get as arguments holds no secret and no environment."""
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    spy = tmp_path / "spy.py"
    spy.write_text(
        "import os, pathlib, runpy, sys\n"
        "key = os.environ['HETERO_HVD_TLS'].splitlines()[1]\n"
        "assert len(key) == 64\n"
        "lines = []\n"
        "for entry in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try:\n"
        "        lines.append(entry.read_bytes())\n"
        "    except OSError:\n"
        "        continue\n"
        "assert any(b'hetero_hvd' in line for line in lines)\n"
        "assert not any(key.encode() in line for line in lines)\n"
        f"sys.argv = ['train.py', '1']\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    nodes = [cluster["alpha"].node(slots=1, devices=[], directory=str(tmp_path))]
    output, _ = run_job(tmp_path, nodes, str(spy))
    assert "[alpha:0] the script is done" in output
