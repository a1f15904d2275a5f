"""From machines with Python and ssh to training on all of them: docs/guide/three-machines.md."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).parents[1] / "driver" / "train.py"
DEADLINE_SECONDS = 300.0
"""From machines with nothing to the end of a first training: what we promise."""


class Stages:
    """How long each took, for the log of the tests."""

    def __init__(self):
        self._last = time.monotonic()
        self.seconds = {}

    def done(self, name):
        """A stage is over."""
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 1)
        self._last = now


def hetero_hvd(folder, *words):
    """Run a command; its exit code and what it prints."""
    vector = [sys.executable, "-m", "hetero_hvd", *words]
    done = subprocess.run(vector, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def bare_node(host):
    """The host as a user writes it who knows of no interpreter there."""
    keys = host.node(devices=[], directory="train")
    return {key: value for key, value in keys.items() if key not in {"python", "env"}}


def test_from_nothing_to_training(bare_cluster, tmp_path, capsys):
    """The doctor says what is missing, install brings it, and two machines and this one train."""
    hosts = [bare_cluster[name] for name in ("gamma", "delta")]
    for host in hosts:
        subprocess.run(host.ssh("rm -rf .local; mkdir -p train"), check=True)
    shutil.copy(SCRIPT, tmp_path)
    nodes = [{"name": "here", "devices": []}, *map(bare_node, hosts)]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    doctor = ("doctor", "-f", "nodes.yaml", "--json", "--", "train.py", "3")
    stages = Stages()

    code, text = hetero_hvd(tmp_path, *doctor)
    found = {node["node"]: node["problems"] for node in json.loads(text)["nodes"]}
    assert code == 1
    assert found["here"] == []
    remedies = [problem["remedy"] for problem in found["gamma"]]
    assert any(remedy.startswith("hetero-hvd install gamma") for remedy in remedies)
    assert any(remedy.startswith("copy it there: scp ") for remedy in remedies)
    stages.done("doctor, nothing there")

    code, text = hetero_hvd(tmp_path, "install")
    assert code == 0, text
    for host in hosts:
        copy = f"cat >train/train.py <<'END'\n{SCRIPT.read_text()}END"
        subprocess.run(host.ssh(copy), check=True)
    stages.done("install")
    code, text = hetero_hvd(tmp_path, *doctor)
    assert code == 0, text
    stages.done("doctor")
    code, text = hetero_hvd(tmp_path, "run", "--output", "out", "--", "train.py", "3")
    assert code == 0, text
    stages.done("run")
    with capsys.disabled():
        sys.stdout.write(f"\n  seconds by stage: {stages.seconds}\n")
    assert sum(stages.seconds.values()) <= DEADLINE_SECONDS
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["workers"]) == {"here:0", "gamma:0", "delta:0"}
    assert len({worker["checksum"] for worker in summary["workers"].values()}) == 1

    code, text = hetero_hvd(tmp_path, "install")
    assert code == 0
    assert text.count("is there already") == 2
