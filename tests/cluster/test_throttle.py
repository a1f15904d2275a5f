"""A CPU quota that becomes tighter while a job runs is named as the cause."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.kit.host_faults import tighter_quota

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = """
import sys, torch, hetero_hvd
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 768),
                            torch.nn.ReLU(), torch.nn.Linear(768, 2))
data = TensorDataset(torch.randn(64000, 16), torch.zeros(64000, dtype=torch.long))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, 640))
for _ in trainer.epochs(20):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: torch.nn.functional.cross_entropy(model(x), y), x, y)
"""


def test_a_tighter_quota_is_found_and_named(virtual_cluster, tmp_path):
    """Real compute on three hosts; one loses two thirds of its processor time."""
    cluster = virtual_cluster({"alpha": 45, "beta": 45, "gamma": 46})
    (tmp_path / "train.py").write_text(SCRIPT)
    nodes = [
        cluster[name].node(slots=1, devices=[], directory=str(tmp_path))
        for name in ("alpha", "beta", "gamma")
    ]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    command = [sys.executable, "-m", "hetero_hvd", "run", "--output", "out", "--no-balance"]
    with (tmp_path / "console.txt").open("wb") as output:
        job = subprocess.Popen(
            [*command, "--", "train.py"], cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        wait_for(lambda: num_tables(tmp_path) >= 14, job)
        assert "beta:0 is slow" not in (tmp_path / "console.txt").read_text()
        with tighter_quota(cluster["beta"], divisor=3):
            wait_for(lambda: "beta:0 is slow" in (tmp_path / "console.txt").read_text(), job)
    finally:
        job.terminate()
        job.wait(30)
    said = (tmp_path / "console.txt").read_text()
    line = next(line for line in said.splitlines() if "beta:0 is slow" in line)
    assert "(throttle: a CPU quota holds it back)" in line, said


def num_tables(folder):
    """Exchanges so far."""
    file = folder / "out" / "timings.jsonl"
    return file.read_text().count("StepsTimed") if file.exists() else 0


def wait_for(condition, job, seconds=90):
    """Until it holds; the job must not end before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert job.poll() is None, "the job has ended"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)
